"""`Metrics`: the metrics of steps and validations, in `metrics.jsonl`, TensorBoard files and Weights & Biases."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from worldsmith.config.tree.plain import to_dict
from worldsmith.distributed.gpus import gpu_of_device
from worldsmith.monitor.metrics_log import MetricsLog
from worldsmith.monitor.sinks import Sinks, TensorBoardLog, WandbLog
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from worldsmith.training.step import StepResult
    from worldsmith.training.validation import Validation

FILE = "metrics.jsonl"


class Metrics(Callback):
    """Writes the figures of every `trainer.logging_iter`-th step, of the first, the last, and of each skipped one.

    A validation has a line of its own, with the number of steps before it. A run that goes on from a checkpoint first
    removes the lines of what it will do again. `job.wandb_mode` says whether Weights & Biases gets the figures, too.
    """

    class Config(Callback.Config):
        tensorboard: bool = True
        """Whether TensorBoard files are written beside metrics.jsonl."""

    config: Config
    sinks: Sinks | None = None

    def on_train_start(self, trainer: TrainingRun) -> None:
        if not trainer.world.is_main:
            return
        done, config = trainer.iteration, trainer.config
        again = config.trainer.validates_after(done)
        self.sinks = sinks = Sinks()
        sinks.sinks[FILE] = MetricsLog(
            trainer.run_folder / FILE, resumed_step=done, is_redone=lambda record: again and "val/loss" in record
        )
        if self.config.tensorboard:
            sinks.add("TensorBoard", lambda: TensorBoardLog(self.folder, resumed_step=done))
        if config.job.wandb_mode != "disabled":
            sinks.add("Weights & Biases", lambda: WandbLog(trainer.run_folder, config.job, to_dict(config)))

    def after_training_step(self, trainer: TrainingRun, step: StepResult) -> None:
        number, loop = trainer.iteration, trainer.config.trainer
        if not (number % loop.logging_iter == 0 or number in (1, loop.max_iter) or step.skipped):
            return
        metrics = step_metrics(step, trainer)  # on every rank: there are sums over them
        for callback in trainer.callbacks.values():
            metrics |= callback.figures(trainer, step)
        self._write(number, metrics)

    def on_validation_end(self, trainer: TrainingRun, validation: Validation) -> None:
        counts = {"samples": validation.samples, "tokens": validation.tokens, "seconds": validation.seconds}
        self._write(
            trainer.iteration, {**nest_by_key(validation.figures), **{f"val/{name}": n for name, n in counts.items()}}
        )

    def _write(self, step: int, metrics: dict[str, Any]) -> None:
        if self.sinks is None:
            return
        lost = dict(self.sinks.lost)
        metrics["unwritten"] = lost.pop(FILE, 0)
        if lost:
            metrics["unwritten_elsewhere"] = lost
        self.sinks.write(step, metrics)

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.sinks is not None:
            self.sinks.close(failed=trainer.outcome is None)


def step_metrics(step: StepResult, trainer: TrainingRun) -> dict[str, Any]:
    """Metrics of one step over all ranks, which call this together; seconds and memory are those of this rank."""
    rejected, loaded = count_data(trainer)
    return {
        "loss": step.loss,
        **nest_by_key(step.figures),
        "lr": step.learning_rates[0],
        **rates_by_group(step, trainer),
        "grad_norm": step.gradient.norm if step.gradient else None,
        "samples": step.samples,
        "tokens": step.tokens,
        "tokens_per_second": step.tokens / step.seconds if step.seconds else None,
        "step_seconds": step.seconds,
        "data_seconds": step.inputs.data_seconds,
        "data_wait_share": step.inputs.data_seconds / step.seconds if step.seconds else None,
        **work_figures(step, trainer),
        **({"loss_scale": step.loss_scale} if trainer.config.model.config.precision == "float16" else {}),
        "skipped": step.skipped,
        "skipped_total": trainer.state.guard.skipped,
        "failed_saves": trainer.failed_saves,
        "peak_memory_bytes": peak_memory_bytes(trainer.world.device),
        "memory_before_bytes": trainer.memory_before,
        "rejected": rejected,
        "loaded": loaded,
    }


def nest_by_key(figures: Mapping[str, float]) -> dict[str, Any]:
    """`{"name[key]": value}` as `{"name": {"key": value}}`."""
    found: dict[str, Any] = {}
    for name, value in figures.items():
        outer, _, key = name.removesuffix("]").partition("[")
        if key:
            found.setdefault(outer, {})[key] = value
        else:
            found[name] = value
    return found


def rates_by_group(step: StepResult, trainer: TrainingRun) -> dict[str, Any]:
    """Learning rate of each parameter group by its factor on `optimizer.lr`; empty if all groups have the same."""
    base, groups = trainer.config.optimizer.lr, trainer.state.optimizer.param_groups
    starts = [group.get("initial_lr", base) for group in groups]
    if len(set(starts)) == 1:
        return {}
    return {"lr_groups": {f"x{start / base:g}": rate for start, rate in zip(starts, step.learning_rates, strict=True)}}


def work_figures(step: StepResult, trainer: TrainingRun) -> dict[str, Any]:
    """Fraction of padding tokens, and `model_flops_share`: the model FLOPs utilization (MFU).

    MFU is omitted if the peak of the device or the FLOPs of the model are not known.
    """
    task, world = trainer.task, trainer.world
    peak = peak_flops(world.device, trainer.config.model.config.precision)
    flops = [task.count_flops(batch) for batch in step.inputs.batches] if peak else []
    needed = sum(count for count in flops if count is not None)
    padding, total = world.data_sum(sum(map(task.padding, step.inputs.batches)), needed)
    figures = {"padding_share": padding / (padding + step.tokens) if step.tokens else None}
    if peak and total and step.seconds:
        figures["model_flops_share"] = total / (step.seconds * peak * world.size)
    return figures


def peak_flops(device: str, precision: str) -> float | None:
    """Peak FLOP/s of the device; None if it is not known."""
    if not device.startswith("cuda") or precision == "float32":
        return None
    import torch

    gpu = gpu_of_device(torch.cuda.get_device_name(device))
    return None if gpu is None else gpu.peak_flops


def count_data(trainer: TrainingRun) -> tuple[dict[str, int], dict[str, int]]:
    """(number of skipped samples by reason, other counts of the loader), over all ranks."""
    loader, world = trainer.state.loader, trainer.world
    rejected = Counter(r.reason for r in loader.dataset.rejections)  # every rank has read the whole list
    loaded: Counter[str] = Counter()
    lost = Counter({**trainer.task.counts(), "quarantine_unwritten": loader.quarantine.unwritten})
    everyone = world.gather((dict(loader.quarantine.counts - rejected), dict(loader.counts), +lost))
    for rank, (left_out, counts, unwritten) in enumerate(everyone):
        loaded.update(unwritten)
        if rank % world.context_parallel == 0:
            rejected.update(left_out)
            loaded.update(counts)
    return dict(sorted(rejected.items())), dict(sorted(loaded.items()))


def peak_memory_bytes(device: str) -> int:
    """Peak memory in bytes: of the GPU, or of this process on a CPU."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
