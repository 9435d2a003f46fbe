"""`LoopConfig`: the `trainer` section of the run tree. Callbacks that are imported here have short names."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from worldsmith.config import Config
from worldsmith.config.declare.ranges import Count, NotNegative, Seed
from worldsmith.training.callbacks.bad_batches import BadBatches
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.callbacks.compile_tokenizer import CompileTokenizer
from worldsmith.training.callbacks.device_monitor import DeviceMonitor
from worldsmith.training.callbacks.first_step_watchdog import FirstStepWatchdog
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.heart_beat import HeartBeat
from worldsmith.training.callbacks.iter_speed import IterSpeed
from worldsmith.training.callbacks.manual_gc import ManualGC as ManualGC
from worldsmith.training.callbacks.metrics import Metrics
from worldsmith.training.callbacks.norm_monitor import NormMonitor
from worldsmith.training.callbacks.param_count import ParamCount
from worldsmith.training.callbacks.profiler import Profiler as Profiler
from worldsmith.training.callbacks.run_page import RunPage
from worldsmith.training.callbacks.run_plan import RunPlan
from worldsmith.training.gradients.loss_scale import LossScaler


def default_callbacks() -> dict[str, Callback.Config]:
    """The callbacks that every run has unless it says otherwise."""
    return {
        "grad_clip": GradClip.Config(),
        "compile_tokenizer": CompileTokenizer.Config(),
        **monitors(),
    }


def monitors() -> dict[str, Callback.Config]:
    """What shows and records every run; it changes no number of the training and costs next to nothing."""
    return {
        "iter_speed": IterSpeed.Config(),
        "heart_beat": HeartBeat.Config(),
        "first_step_watchdog": FirstStepWatchdog.Config(),
        "param_count": ParamCount.Config(),
        "DeviceMonitor": DeviceMonitor.Config(),
        "norm_monitor": NormMonitor.Config(),
        "bad_batches": BadBatches.Config(),
        "metrics": Metrics.Config(),
        "plan": RunPlan.Config(),
        "run_page": RunPage.Config(),  # last: it shows what the others have written
    }


class LoopConfig(Config):
    """How long the loop runs, what one step is, and what happens around it."""

    max_iter: Count = 500
    """Optimizer steps of the whole run."""
    grad_accum_iter: Count = 1
    """Packs per optimizer step on each rank. A step's loss is the mean over all its samples."""
    logging_iter: Count = 10
    """Write the figures of every this many steps."""
    run_validation: bool = False
    """Whether the loss on `dataloader_val` is measured, with the live weights and with their average."""
    validation_iter: Count = 100
    """Validate after every this many steps, and after the last."""
    max_val_iter: Count | None = None
    """Packs of one validation on each rank, at most. None: all samples, once each."""
    run_validation_on_start: bool = False
    """Whether a new run also validates before its first step."""
    early_stop_patience: Count | None = None
    """Finish after so many validations in a row that are no better by `checkpoint.keep_best`. None: do all steps."""
    seed: Seed = 42
    """Seed of weights, noise levels and noise."""
    distributed_parallelism: Literal["fsdp"] = "fsdp"
    """How several processes share the work."""
    max_consecutive_skipped: NotNegative = 100
    """Skipped (not finite) steps in a row that are borne; one more stops the run."""
    loss_scale: LossScaler.Config = field(default_factory=LossScaler.Config)
    """The scale of the loss with model.config.precision = "float16"; there is none with another."""
    cpu_threads: Count | None = None
    """Threads of this process for CPU work. None: PyTorch's choice. Another number can change the last bits."""
    callbacks: dict[str, Callback.Config] = field(default_factory=default_callbacks)
    """What happens around the step, by name; each has a folder of that name in the run folder. """

    def validates_after(self, steps: int) -> bool:
        """Whether the weights after so many steps are validated."""
        if not self.run_validation or not steps:
            return self.run_validation and self.run_validation_on_start
        return steps % self.validation_iter == 0 or steps == self.max_iter
