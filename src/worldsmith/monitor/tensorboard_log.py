"""TensorBoard event files of a run's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoardLog:
    """Writes every numeric metric as a curve; texts and lists have no curve and stay in `metrics.jsonl`.

    On resume the readers are told to forget what an interrupted run wrote after `resumed_step` (0 for a new run).
    """

    def __init__(self, folder: Path, *, resumed_step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        has_events = any(folder.glob("events.out.tfevents.*"))
        self.writer = SummaryWriter(str(folder), purge_step=resumed_step + 1 if has_events else None)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds one point to the curve of each number; nested mappings give curves named `outer/inner`."""
        for name, value in numbers(metrics):
            self.writer.add_scalar(name, value, global_step=step)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()

    def __enter__(self) -> TensorBoardLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """The numeric metrics with their full names."""
    found: list[tuple[str, float]] = []
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            found += numbers(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) or (hasattr(value, "item") and getattr(value, "ndim", None) == 0):
            found.append((prefix + key, float(value)))
    return found
