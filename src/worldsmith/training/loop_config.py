"""`LoopConfig`: the `trainer` section of the run tree."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from worldsmith.config import Config
from worldsmith.config.declare.ranges import Count, NotNegative, Seed
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

    max_iter: Count = 500
    """Optimizer steps of the whole run."""
    grad_accum_iter: Count = 1
    """Packs per optimizer step on each rank. A step's loss is the mean over all its samples."""
    logging_iter: Count = 10
    """Write the figures of every this many steps."""
    seed: Seed = 42
    """Seed of weights, noise levels and noise."""
    distributed_parallelism: Literal["fsdp"] = "fsdp"
    """How several processes share the work."""
    max_consecutive_skipped: NotNegative = 100
    """Skipped (not finite) steps in a row that are borne; one more stops the run."""
    cpu_threads: Count | None = None
    """Threads of this process for CPU work. None: PyTorch's choice. Another number can change the last bits."""
    callbacks: dict[str, Callback.Config] = field(default_factory=default_callbacks)
    """What happens around the step, by name; each has a folder of that name in the run folder. """
