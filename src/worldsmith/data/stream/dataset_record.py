"""`dataset_windows.txt` in the run folder: the samples of a run, so that a changed dataset can be described."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from worldsmith.data.stream.sample_maker import ALL, StreamDataset, digest
from worldsmith.files.lines import read_lines

FILE = "dataset_windows.txt"
VALIDATION = "dataset_windows_val.txt"
"""File with the samples of the validation dataset; changes of that dataset are logged and do not stop a run."""


def record_text(dataset: StreamDataset) -> str:
    """Returns the content of `dataset_windows.txt`: a line "HASH KEY" per sample, with the hash of its content."""
    return "".join(f"{digest(facts)} {key}\n" for key, facts in dataset.listing())


def changed_samples(record: Path, dataset: StreamDataset) -> list[str]:
    """Compares a dataset with the samples that were recorded at the start of a run.

    Args:
        record: Path of `dataset_windows.txt` in the run folder.
        dataset: Current dataset.

    Returns:
        One line per type of change (removed, new or changed samples); empty if there is no record or no change.
    """
    if not record.exists():
        return []
    lines = read_lines(record)
    before = {key: facts for facts, _, key in (line.partition(" ") for line in lines)}
    now = {key: digest(facts) for key, facts in dataset.listing()}
    if ALL in before or ALL in now:
        return [] if before == now else ["samples have changed; those of a large dataset are not compared one by one"]
    kinds = (
        ("gone", [key for key in before if key not in now]),
        ("new", [key for key in now if key not in before]),
        ("with other content", [key for key in now if before.get(key, now[key]) != now[key]]),
    )
    return [f"samples {kind} ({len(keys)}): {list_keys(keys)}" for kind, keys in kinds if keys]


def list_keys(keys: Sequence[str], limit: int = 3) -> str:
    return ", ".join(sorted(keys)[:limit]) + (", …" if len(keys) > limit else "")
