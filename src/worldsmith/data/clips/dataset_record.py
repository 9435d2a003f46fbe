"""`dataset_windows.txt` in the run folder: which windows a run is trained on, so that a change can be told in words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worldsmith.data.clips.video_dataset import VideoDataset, Window

FILE = "dataset_windows.txt"


def record_text(dataset: VideoDataset) -> str:
    """One line for each window: 12 digits of a hash of its path, frames and captions, then its key."""
    return "".join(f"{digest(window)} {window.key}\n" for window in dataset.windows)


def changed_windows(record: Path, dataset: VideoDataset) -> list[str]:
    """How the data set differs from the recorded one, a line for each kind of change; empty without a record."""
    if not record.exists():
        return []
    lines = record.read_text(encoding="utf-8").splitlines()
    before = {key: facts for facts, _, key in (line.partition(" ") for line in lines)}
    now = {window.key: digest(window) for window in dataset.windows}
    kinds = (
        ("gone", [key for key in before if key not in now]),
        ("new", [key for key in now if key not in before]),
        ("with other captions, frames or path", [key for key in now if before.get(key, now[key]) != now[key]]),
    )
    return [f"windows {kind} ({len(keys)}): {shown(keys)}" for kind, keys in kinds if keys]


def digest(window: Window) -> str:
    w = window
    facts = [w.relative_path, w.start_frame, w.end_frame, w.temporal_interval, w.captions]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def shown(keys: Sequence[str], limit: int = 3) -> str:
    return ", ".join(sorted(keys)[:limit]) + (", …" if len(keys) > limit else "")
