"""What a run does at this moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worldsmith.training.callbacks.base import TrainingRun


def activity(trainer: TrainingRun) -> tuple[str, float | None]:
    """In a word, and which share of it is done; None where that is not known. May be asked by any thread."""
    work = trainer.task.long_work
    return work if trainer.doing == "training" and work is not None else (trainer.doing, trainer.share)
