"""`RunConfig`: the config of a training run, and `LoopConfig`: its `trainer` section.

Callbacks that are imported here have short names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any, ClassVar, Literal

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.checkpoint.sources.first_weights import FirstWeights, first_weights
from worldsmith.config import Config, Configurable
from worldsmith.config.declare.ranges import Count, NotNegative, Seed
from worldsmith.config.errors import wrong
from worldsmith.config.sections import DataSettingConfig, JobConfig
from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.distributed.degrees import check_world_size, launch_warnings
from worldsmith.models.spec import ModelSpec
from worldsmith.objectives.objective import Objective
from worldsmith.tasks.registry import task_of
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.callbacks.failures import BadBatches, FirstStepWatchdog
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.metrics import DeviceMonitor, Metrics, NormMonitor, ParamCount
from worldsmith.training.callbacks.progress import HeartBeat, IterSpeed
from worldsmith.training.callbacks.run_reports import RunPage, RunPlan
from worldsmith.training.callbacks.step_speed import CompileTokenizer, ManualGC
from worldsmith.training.callbacks.step_speed import Profiler as Profiler
from worldsmith.training.optimizer import AdamW, LossScaler
from worldsmith.training.scheduler import AnySchedule, LambdaLinear, schedule_warnings


def default_callbacks() -> dict[str, Callback.Config]:
    """Returns the default callbacks of a run by name."""
    return {"grad_clip": GradClip.Config(), "compile_tokenizer": CompileTokenizer.Config(), **monitors()}


def monitors() -> dict[str, Callback.Config]:
    """Returns the callbacks of every run that do not change the training and take little time, by name."""
    return {
        "iter_speed": IterSpeed.Config(),
        "heart_beat": HeartBeat.Config(),
        "first_step_watchdog": FirstStepWatchdog.Config(),
        "param_count": ParamCount.Config(),
        "DeviceMonitor": DeviceMonitor.Config(),
        "norm_monitor": NormMonitor.Config(),
        "bad_batches": BadBatches.Config(),
        "metrics": Metrics.Config(),
        "manual_gc": ManualGC.Config(),
        "plan": RunPlan.Config(),
        "run_page": RunPage.Config(),  # last: it shows what the others have written
    }


class LoopConfig(Config):
    """Settings of the training loop: number of steps, gradient accumulation, validation and callbacks."""

    max_iter: Count = 500
    """Number of optimizer steps of the complete run."""
    grad_accum_iter: Count = 1
    """Packs per optimizer step on each rank (gradient accumulation). The loss of a step is the mean over all its
    samples."""
    logging_iter: Count = 10
    """Steps between two logged metrics."""
    run_validation: bool = False
    """Whether the loss on `dataloader_val` is measured, with the raw weights and with the EMA weights."""
    validation_iter: Count = 100
    """Steps between two validations; one more follows the last step."""
    max_val_iter: Count | None = None
    """Max packs per validation on each rank. None: all samples, once each."""
    run_validation_on_start: bool = False
    """Whether a new run also validates before its first step."""
    early_stop_patience: Count | None = None
    """Early stopping: finish after this many consecutive validations without a better `checkpoint.keep_best` metric.
    None: run all steps."""
    seed: Seed = 42
    """Seed of random weights, noise levels and noise."""
    distributed_parallelism: Literal["fsdp"] = "fsdp"
    """Type of distributed training."""
    max_consecutive_skipped: NotNegative = 100
    """Maximum number of skipped (non-finite) steps in a row; one more stops the run."""
    loss_scale: LossScaler.Config = field(default_factory=LossScaler.Config)
    """Loss scale with model.config.precision = "float16"; not used with other precisions."""
    cpu_threads: Count | None = None
    """CPU threads of each process. None: PyTorch's choice. Another number can change the last bits of results."""
    encode_first: Literal["auto", "always", "never"] = "auto"
    """Whether latents and text embeddings are written to the latent cache before the network gets memory: those of the
    samples that the run can read, but of one epoch at most. The VAE and the text encoder are loaded one after the
    other, and freed. "auto": only on a GPU, and if the encoders need more than a quarter of the memory that the
    training state leaves."""
    callbacks: dict[str, Callback.Config] = field(default_factory=default_callbacks)
    """Callbacks by name; each one has a folder of that name in the run folder."""

    def validates_after(self, steps: int) -> bool:
        """Returns whether a validation is due after `steps` steps."""
        if not self.run_validation or not steps:
            return self.run_validation and self.run_validation_on_start
        return steps % self.validation_iter == 0 or steps == self.max_iter


class RunConfig(Configurable.Config):
    """Root section of a run's config. Config files name it by the class `Trainer`, which is built from it."""

    job: JobConfig = field(default_factory=JobConfig)
    """Project, group and name of the run."""
    model: ModelSpec
    """Model to train."""
    objective: Objective.Config
    """Training objective."""
    optimizer: AdamW.Config = field(default_factory=AdamW.Config)
    """Optimizer and the parameters that it trains."""
    scheduler: AnySchedule = field(default_factory=LambdaLinear.Config)
    """The learning rate over time."""
    trainer: LoopConfig = field(default_factory=LoopConfig)
    """Training loop and callbacks."""
    checkpoint: Checkpointer.Config = field(default_factory=Checkpointer.Config)
    """Initial weights and checkpoints."""
    dataloader_train: PackingDataLoader.Config
    """Training data."""
    dataloader_val: PackingDataLoader.Config | None = None
    """Validation data, read from the start each time. None: no validation data."""
    data_setting: DataSettingConfig = field(default_factory=DataSettingConfig)
    """Data limits for training reasoners; video generators ignore them."""
    custom: dict[str, Any] = field(default_factory=dict)
    """The project's own data, stored with the run and not interpreted."""
    _root: ClassVar[bool] = True

    def initial_weights(self) -> FirstWeights | None:
        """Returns the initial weights of a new run; None if they are random."""
        return first_weights(self.checkpoint.load_path, self.checkpoint.init, self.model.config)

    def check(self) -> None:
        """Raises WrongValueError if settings contradict each other; the message contains a fix."""
        model = self.model.config
        if self.job.task != model.task:
            why = f"models of the family '{model.family}' need another task"
            raise wrong(self, "job.task", why=why, remedy=f'use "{model.task}"')
        writers = [found for found in self.trainer.callbacks.values() if isinstance(found, Metrics.Config)]
        if self.job.wandb_mode != "disabled" and not writers:
            why = "no callback of the run writes metrics"
            raise wrong(self, "job.wandb_mode", why=why, remedy='add the callback metrics, or use "disabled"')
        if self.checkpoint.init != "scratch" and self.initial_weights() is None:
            both = "checkpoint.load_path", "checkpoint.init"
            remedy = 'set checkpoint.load_path, or checkpoint.init = "scratch" to train from random weights'
            raise wrong(self, *both, why="no initial weights are set", remedy=remedy)
        if self.checkpoint.load_adapter is not None and not model.lora_enabled:
            both = "checkpoint.load_adapter", "model.config.lora_enabled"
            raise wrong(self, *both, why="the run has no adapters", remedy="set lora_enabled = true")
        if self.checkpoint.load_adapter is not None and self.initial_weights() is None:
            both = "checkpoint.load_adapter", "checkpoint.init"
            why = "adapters belong to the base weights with which they were trained, and not to random ones"
            raise wrong(self, *both, why=why, remedy="set checkpoint.load_path to the base weights")
        for level in ("project", "group"):
            if not getattr(self.job, level):
                why = "it is a folder name in the path of the run, <output root>/<project>/<group>/<name>"
                raise wrong(self, f"job.{level}", why=why, remedy="write a name")
        if self.trainer.run_validation and self.dataloader_val is None:
            both, why = ("trainer.run_validation", "dataloader_val"), "there is no validation data"
            raise wrong(self, *both, why=why, remedy="set dataloader_val, or run_validation = false")
        if model.precision != "float16" and self.trainer.loss_scale != LossScaler.Config():
            both, why = ("trainer.loss_scale", "model.config.precision"), "only float16 uses a loss scale"
            raise wrong(self, *both, why=why, remedy='omit loss_scale, or use precision = "float16"')
        if self.trainer.encode_first == "always" and (why := why_not_encodable(self)):
            raise wrong(self, "trainer.encode_first", why=why, remedy='or write "never"')
        check_best_checkpoint(self)
        model.check_trained(self.optimizer.keys_to_select)
        task_of(model.family).check(self)
        for converter in model.converters:
            converter.check_run(self)
        for callback in self.trainer.callbacks.values():
            callback.check_run(self)
        check_world_size(model.parallelism)

    def list_warnings(self) -> Iterator[str]:
        yield from schedule_warnings(self.scheduler, self.trainer.max_iter, self.optimizer.lr)
        skipped, start = self.checkpoint.keys_to_skip_loading, (self.checkpoint.load_path, self.checkpoint.init)
        if skipped and start == (None, "scratch"):
            yield f"checkpoint.keys_to_skip_loading = {skipped} has no effect: without load_path no weights are loaded"
        if self.job.task == "vfm" and self.data_setting != DataSettingConfig():
            yield "data_setting has no effect for task 'vfm': its limits apply to the data of vision-language models"
        yield from launch_warnings(self.model.config.parallelism)


def check_best_checkpoint(config: RunConfig) -> None:
    """Raises WrongValueError if best checkpoint or early stopping depend on a validation that the run does not do."""
    metric, patience = config.checkpoint.keep_best, config.trainer.early_stop_patience
    if metric is not None and not config.trainer.run_validation:
        both = "checkpoint.keep_best", "trainer.run_validation"
        raise wrong(
            config, *both, why="the run does not validate", remedy="set run_validation = true, or keep_best = null"
        )
    if metric is not None and metric.startswith("val_ema/") and not config.model.config.ema.enabled:
        both = "checkpoint.keep_best", "model.config.ema.enabled"
        raise wrong(config, *both, why="there are no EMA weights", remedy='use "val/loss"')
    if patience is not None and metric is None:
        both = "trainer.early_stop_patience", "checkpoint.keep_best"
        raise wrong(config, *both, why="no metric defines what is better", remedy='set keep_best = "val/loss"')


def why_not_encodable(config: Any) -> str:
    """Returns why a run would have to encode clips even after all were encoded before the training; "" if not.

    The reason is a missing latent cache of the training data or of validation data.
    """
    data, val = config.dataloader_train, config.dataloader_val
    if not hasattr(data, "latent_cache"):
        return f"runs of '{config.model.name}' have no latent cache"
    if not data.latent_cache:
        return "dataloader_train.latent_cache is '', so every step encodes its clips; set it to a folder"
    if val is not None and config.trainer.run_validation and not val.latent_cache:
        return "dataloader_val.latent_cache is '', so validations encode their clips; set it to a folder"
    return ""
