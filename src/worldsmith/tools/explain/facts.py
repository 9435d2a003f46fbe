"""Facts about a run that an explanation of an error shows."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worldsmith.files.write_checks import nearest_folder
from worldsmith.monitor.page.run_files import lookup, read_run
from worldsmith.monitor.short_text import format_bytes

ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class Run:
    """Known facts of a run: its config as plain data, its folder (None: not created yet), its number of processes."""

    config: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    processes: int = 1

    def has(self, path: str) -> bool:
        """Returns whether the config of the run has a setting at a dotted path, such as "trainer.max_iter"."""
        return lookup(self.config, path, ABSENT) is not ABSENT

    def value(self, path: str) -> Any:
        """Returns the setting at a dotted path of the run's config; None if it does not exist."""
        return lookup(self.config, path)

    @property
    def task(self) -> str | None:
        """Task of the run: "vfm" (video generator) or "vlm" (vision-language reasoner); None: unknown."""
        return self.value("job.task")


def run_in(folder: Path) -> Run:
    """Reads the facts about a run from its folder. Raises UserError if it is not a run folder."""
    files = read_run(folder)
    processes = lookup(files.environment, "world_size", 1)
    return Run(files.config, folder, processes if isinstance(processes, int) else 1)


def processes(run: Run) -> str:
    return f"{run.processes} process{'es' * (run.processes > 1)}"


def ranks(run: Run) -> str:
    """Returns text with the number of processes and the parallelism degrees of a run."""
    names = {
        "replicate": "data_parallel_replicate",
        "shard": "data_parallel_shard",
        "context": "context_parallel_shard",
    }
    values = {name: run.value(f"model.config.parallelism.{path}_degree") for name, path in names.items()}
    shared = ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
    return f"{processes(run)}{f' ({shared})' * bool(shared)}"


def pack(run: Run) -> str | None:
    """Returns text with the limits of a packed batch and the batches per step of a run; None without limits."""
    caps = {"samples": "dataloader_train.max_samples_per_batch", "tokens": "dataloader_train.max_sequence_length"}
    most = [f"{value} {what}" for what, path in caps.items() if isinstance(value := run.value(path), int)]
    each = run.value("trainer.grad_accum_iter")
    return f"packs of at most {' or '.join(most)}, {each} per step on each process" if most else None


def workers(run: Run) -> str | None:
    """Returns text with the number of data loader workers per process; None if unknown."""
    count = run.value("dataloader_train.num_workers")
    return None if count is None else f"{count} loader workers for each of {processes(run)}"


def disk(run: Run) -> str | None:
    """Returns text with the free disk space at the run folder; None if the run has no folder."""
    if run.folder is None:
        return None
    folder = nearest_folder(run.folder)
    return f"{format_bytes(shutil.disk_usage(folder).free)} free on the disk of {folder}"


def memory(run: Run) -> str:
    """Returns text with the free host RAM of this machine; it does not depend on the run."""
    from worldsmith.distributed.memory import free_memory

    return f"{format_bytes(free_memory('cpu'))} of host RAM free on this machine now"


def checkpoints(run: Run) -> str | None:
    """Returns text with the number of checkpoints of a run and the size of the newest one; None without checkpoints."""
    folders = sorted((run.folder / "checkpoints").glob("iter_*")) if run.folder else []
    if not folders:
        return None
    newest = sum(path.stat().st_size for path in folders[-1].rglob("*") if path.is_file())
    return f"{len(folders)} checkpoint{'s' * (len(folders) > 1)}, the newest has {format_bytes(newest)}"


def quarantine(run: Run) -> str | None:
    """Returns text with the number of skipped samples of a run by reason; None if none is recorded."""
    left_out = read_run(run.folder).left_out if run.folder and run.folder.is_dir() else {}
    reasons = Counter(str(entry.get("reason")) for entries in left_out.values() for entry in entries)
    return (
        f"skipped: {', '.join((f'{reason} {count}' for reason, count in reasons.most_common()))}" if reasons else None
    )


def skipped(run: Run) -> str | None:
    """Returns text with the number of skipped steps and the file that describes the first one; None without any."""
    files = sorted((run.folder / "bad_batches").glob("step_*.json")) if run.folder else []
    return f"{len(files)} steps were skipped; {files[0]} describes the first" if files else None


def token(run: Run) -> str:
    """Returns text on whether this machine has a hub token; it does not depend on the run."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    known = bool(os.environ.get("HF_TOKEN")) or (home / "token").exists()
    return f"{'a' if known else 'no'} Hugging Face token is set on this machine now"


FACTS: Mapping[str, Callable[[Run], str | None]] = {
    fact.__name__: fact for fact in (ranks, pack, workers, disk, memory, checkpoints, quarantine, skipped, token)
}
"""Functions that return a fact about a run as text, by the name in a pattern's `facts`; None if it is not known."""
