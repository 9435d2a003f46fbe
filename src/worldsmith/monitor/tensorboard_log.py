"""TensorBoard event files of a run's metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)


class TensorBoardLog:
    """Writes every numeric metric as a curve; texts and lists have no curve and stay in `metrics.jsonl`.

    On resume the readers are told to forget what an interrupted run wrote after `resumed_step` (0 for a new run). When
    the files cannot be written, as on a full disk, that is said and the curves end: the run goes on.
    """

    def __init__(self, folder: Path, *, resumed_step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        self.writer: SummaryWriter | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            has_events = any(folder.glob("events.out.tfevents.*"))
            self.writer = SummaryWriter(str(folder), purge_step=resumed_step + 1 if has_events else None)
        except OSError as error:
            self._give_up(error)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds one point to the curve of each number; nested mappings give curves named `outer/inner`."""
        if self.writer is None:
            return
        try:
            for name, value in numbers(metrics):
                self.writer.add_scalar(name, value, global_step=step)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        try:
            if self.writer is not None:
                self.writer.close()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.writer = None
        logger.warning("the TensorBoard files in %s cannot be written, the curves end here: %s", self.folder, error)

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
