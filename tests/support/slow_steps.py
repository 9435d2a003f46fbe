"""The toy family with a pause in every step, so that a test can act between the steps of a run."""

from __future__ import annotations

import time
from typing import Any

import toy_family  # noqa: F401

from worldsmith.training.trainer import Trainer

quick_step = Trainer.training_step


def slow_step(self: Trainer, batches: Any) -> Any:
    time.sleep(0.2)
    return quick_step(self, batches)


Trainer.training_step = slow_step  # type: ignore[method-assign]
