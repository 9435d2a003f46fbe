"""`LoopConfig`: the `trainer` section of the run tree."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from worldsmith.config import Config
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.callbacks.compile_tokenizer import CompileTokenizer
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.iter_speed import IterSpeed
from worldsmith.training.callbacks.metrics import Metrics


def default_callbacks() -> dict[str, Callback.Config]:
    """The callbacks that every run has unless it says otherwise."""
    return {
        "grad_clip": GradClip.Config(),
        "compile_tokenizer": CompileTokenizer.Config(),
        "iter_speed": IterSpeed.Config(),
        "metrics": Metrics.Config(),
    }


class LoopConfig(Config):
    """How long the loop runs, what one step is, and what happens around it."""

    max_iter: int = 500
    """Optimizer steps of the whole run."""
    grad_accum_iter: int = 1
    """Packs per optimizer step on each rank. A step's loss is the mean over all its samples."""
    logging_iter: int = 10
    """Write the figures of every this many steps."""
    seed: int = 42
    """Seed of weights, noise levels and noise."""
    distributed_parallelism: Literal["fsdp"] = "fsdp"
    """How several processes share the work."""
    max_consecutive_skipped: int = 100
    """Skipped (not finite) steps in a row that are borne; one more stops the run."""
    cpu_threads: int | None = None
    """Threads of this process for CPU work. None: PyTorch's choice. Another number can change the last bits."""
    callbacks: dict[str, Callback.Config] = field(default_factory=default_callbacks)
    """What happens around the step, by name; each has a folder of that name in the run folder. """

    def check(self) -> None:
        for name, least in (
            ("max_iter", 1),
            ("grad_accum_iter", 1),
            ("logging_iter", 1),
            ("max_consecutive_skipped", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, found {getattr(self, name)}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, found {self.seed}")
        if self.cpu_threads is not None and self.cpu_threads < 1:
            raise ValueError(f"cpu_threads must be at least 1, or null; found {self.cpu_threads}")
