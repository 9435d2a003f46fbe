"""`Metrics`, `DeviceMonitor`, `NormMonitor` and `ParamCount`: measurements of a run, in files and in Weights & Biases.

`metrics.jsonl` has one line per logged step. The monitors also write files of their own, with more details.
"""

from __future__ import annotations

import logging
import math
import resource
import socket
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from worldsmith.config.declare.ranges import Count
from worldsmith.config.tree.plain import to_dict
from worldsmith.distributed.gpus import gpu_of_device
from worldsmith.models.local_part import local_part
from worldsmith.models.parameter_names import native_parameters
from worldsmith.monitor.metrics_log import MetricsLog
from worldsmith.monitor.sinks import Sinks, TensorBoardLog, WandbLog
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.training.step import StepInputs, StepResult
    from worldsmith.training.validation import Validation

logger = logging.getLogger(__name__)

FILE = "metrics.jsonl"
REJECTED, LOADED = "rejected.", "loaded."
"""Prefixes of the names of data loading counters."""
GREATEST = ("cpu_percent", "ram_bytes", "gpu_percent", "gpu_bytes")


class Metrics(Callback):
    """Writes metrics at every `trainer.logging_iter`-th step, the first and the last step, and each skipped step.

    A validation has its own line, with the number of steps before it. A resumed run first removes the lines of steps
    that it repeats. With `job.wandb_mode` the metrics are also sent to Weights & Biases.
    """

    class Config(Callback.Config):
        tensorboard: bool = True
        """Whether TensorBoard files are written in addition to metrics.jsonl."""

    config: Config
    sinks = Sinks()
    counters: tuple[str, ...] = ()
    """Names of the data loading counters that some rank has had, equal on all ranks."""

    def on_train_start(self, trainer: TrainingRun) -> None:
        if not trainer.world.is_main:
            return
        step, config = trainer.iteration, trainer.config
        revalidates = config.trainer.validates_after(step)
        self.sinks = sinks = Sinks()
        sinks.sinks[FILE] = MetricsLog(
            trainer.run_folder / FILE, resumed_step=step, is_redone=lambda record: revalidates and "val/loss" in record
        )
        if self.config.tensorboard:
            sinks.add("TensorBoard", lambda: TensorBoardLog(self.folder, resumed_step=step))
        if config.job.wandb_mode != "disabled":
            sinks.add("Weights & Biases", lambda: WandbLog(trainer.run_folder, config.job, to_dict(config)))

    def step_counts(self, trainer: TrainingRun, inputs: StepInputs) -> Mapping[str, float]:
        return self.own_counts(trainer, inputs) if self.is_logged(trainer, inputs.index + 1) else {}

    def after_training_step(self, trainer: TrainingRun, step: StepResult) -> None:
        if not (step.skipped or self.is_logged(trainer, step.inputs.index + 1)):
            return
        sums = dict(step.sums)
        if "padding" not in sums:  # of a skipped step that was not to be logged, or had no weight
            sums |= self.add_up(trainer, self.own_counts(trainer, step.inputs))
        if sums["new_counters"]:
            self.counters = tuple(sorted(set().union(*trainer.world.gather(tuple(data_counts(trainer))))))
            sums |= self.add_up(trainer, self.own_counts(trainer, step.inputs))
        metrics = step_metrics(step, trainer, sums)
        for callback in trainer.callbacks.values():
            metrics |= callback.metrics(trainer, step)
        self._write(trainer.iteration, metrics)

    def is_logged(self, trainer: TrainingRun, number: int) -> bool:
        loop = trainer.config.trainer
        return number % loop.logging_iter == 0 or number in (1, loop.max_iter)

    def own_counts(self, trainer: TrainingRun, inputs: StepInputs) -> dict[str, float]:
        """Returns the values of this rank that `step_metrics` needs the sums of: padding, FLOPs and data counters.

        `new_counters` is the number of counters that are not in `counters`.
        """
        task, world = trainer.task, trainer.world
        knows_peak = peak_flops(world.device, trainer.config.model.config.precision) is not None
        flops = [task.count_flops(batch) for batch in inputs.batches] if knows_peak else []
        counts, once = data_counts(trainer), world.rank % world.context_parallel == 0
        return {
            "padding": once * sum(map(task.padding, inputs.batches)),
            "flops": once * sum(count for count in flops if count is not None),
            "new_counters": len(counts.keys() - set(self.counters)),
            **{name: counts.get(name, 0) for name in self.counters},
        }

    def add_up(self, trainer: TrainingRun, counts: Mapping[str, float]) -> dict[str, float]:
        """Returns the sum over all ranks of each value. Collective."""
        return dict(zip(counts, trainer.world.sum(*counts.values())))

    def on_validation_end(self, trainer: TrainingRun, validation: Validation) -> None:
        counts = {"samples": validation.samples, "tokens": validation.tokens, "seconds": validation.seconds}
        self._write(
            trainer.iteration, {**nest_by_key(validation.metrics), **{f"val/{name}": n for name, n in counts.items()}}
        )

    def _write(self, step: int, metrics: dict[str, Any]) -> None:
        lost = dict(self.sinks.lost)
        metrics["unwritten"] = lost.pop(FILE, 0)
        if lost:
            metrics["unwritten_elsewhere"] = lost
        self.sinks.write(step, metrics)

    def on_train_end(self, trainer: TrainingRun) -> None:
        self.sinks.close(failed=trainer.outcome is None)


def step_metrics(step: StepResult, trainer: TrainingRun, sums: Mapping[str, float]) -> dict[str, Any]:
    """Returns the metrics of one step for metrics.jsonl, such as loss, lr, grad_norm and tokens_per_second.

    Values refer to all ranks, but durations (seconds) and memory (bytes) to this rank. Unknown values are None.

    Args:
        step: The step.
        trainer: The run.
        sums: Sums over all ranks of `Metrics.own_counts`.
    """
    counts = Counter(f"{REJECTED}{r.reason}" for r in trainer.state.loader.dataset.rejections)
    counts.update({name: int(count) for name, count in sums.items() if name.startswith((REJECTED, LOADED))})
    data = {
        kind: {name.removeprefix(kind): counts[name] for name in sorted(counts) if name.startswith(kind)}
        for kind in (REJECTED, LOADED)
    }
    return {
        "loss": step.loss,
        **nest_by_key(step.metrics),
        "lr": step.learning_rates[0],
        **learning_rates_by_factor(step, trainer),
        "grad_norm": step.gradient.norm if step.gradient else None,
        "samples": step.samples,
        "tokens": step.tokens,
        "tokens_per_second": step.tokens / step.seconds if step.seconds else None,
        "step_seconds": step.seconds,
        "data_seconds": step.inputs.data_seconds,
        "data_wait_share": step.inputs.data_seconds / step.seconds if step.seconds else None,
        **utilization_metrics(step, trainer, sums),
        **({"loss_scale": step.loss_scale} if trainer.config.model.config.precision == "float16" else {}),
        "skipped": step.skipped,
        "skipped_total": trainer.state.guard.skipped,
        "failed_saves": trainer.failed_saves,
        **({"failed_uploads": trainer.uploads.failed} if trainer.uploads.address else {}),
        "peak_memory_bytes": peak_memory_bytes(trainer.world.device),
        "memory_before_bytes": trainer.memory_before,
        "rejected": data[REJECTED],
        "loaded": data[LOADED],
    }


def nest_by_key(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Converts `{"name[key]": value}` to `{"name": {"key": value}}`."""
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        outer, _, key = name.removesuffix("]").partition("[")
        if key:
            found.setdefault(outer, {})[key] = value
        else:
            found[name] = value
    return found


def learning_rates_by_factor(step: StepResult, trainer: TrainingRun) -> dict[str, Any]:
    """Returns {"lr_groups": {"x<factor>": lr}} with the factors on `optimizer.lr`; {} if all factors are equal."""
    base, groups = trainer.config.optimizer.lr, trainer.state.optimizer.param_groups
    starts = [group.get("initial_lr", base) for group in groups]
    if len(set(starts)) == 1:
        return {}
    return {"lr_groups": {f"x{start / base:g}": rate for start, rate in zip(starts, step.learning_rates, strict=True)}}


def utilization_metrics(step: StepResult, trainer: TrainingRun, sums: Mapping[str, float]) -> dict[str, Any]:
    """Returns the metrics `padding_share` and `model_flops_share` of a step.

    `padding_share` is the fraction of padding tokens. `model_flops_share` is the model FLOPs utilization (MFU); it is
    omitted if the peak of the device or the FLOPs of the model are not known.
    """
    world, padding = trainer.world, sums["padding"]
    peak = peak_flops(world.device, trainer.config.model.config.precision)
    metrics = {"padding_share": padding / (padding + step.tokens) if step.tokens else None}
    if peak and sums["flops"] and step.seconds:
        metrics["model_flops_share"] = sums["flops"] / (step.seconds * peak * world.size)
    return metrics


def peak_flops(device: str, precision: str) -> float | None:
    """Returns the peak FLOP/s of a CUDA device such as "cuda:0" with 16-bit matmuls.

    None if `precision` is "float32", if the device is no CUDA device, or if its peak is not known.
    """
    if not device.startswith("cuda") or precision == "float32":
        return None
    import torch

    gpu = gpu_of_device(torch.cuda.get_device_name(device))
    return None if gpu is None else gpu.peak_flops


def data_counts(trainer: TrainingRun) -> dict[str, float]:
    """Returns the counters of data loading on this rank since this process started, above 0, by name.

    Names begin with `REJECTED` (skipped samples by reason) or `LOADED` (other counts of loader and task). Samples that
    every rank has skipped while it read the list of the data are not included. A context-parallel group reads the same
    samples on all ranks, so only the first one counts them.
    """
    loader, world = trainer.state.loader, trainer.world
    found = Counter(
        {f"{LOADED}{name}": count for name, count in trainer.task.counts().items()}
        | {f"{LOADED}quarantine_unwritten": loader.quarantine.unwritten}
    )
    if world.rank % world.context_parallel == 0:
        skipped = loader.quarantine.counts - Counter(r.reason for r in loader.dataset.rejections)
        found.update({f"{REJECTED}{reason}": count for reason, count in skipped.items()})
        found.update({f"{LOADED}{name}": count for name, count in loader.counts.items()})
    return dict(+found)


def peak_memory_bytes(device: str) -> int:
    """Returns the peak memory in bytes: of the GPU, or of this process on a CPU."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


class DeviceMonitor(Callback):
    """Records CPU, RAM and GPU usage of every process at intervals.

    `devices.jsonl` has one line per reading, with an entry per process:

    - `cpu_percent` (100 is one busy core, without loader workers) and `ram_bytes` are of the process, `ram_free_bytes`
      is of its machine.
    - `gpu_bytes` is allocated by tensors. `gpu_percent` is the GPU utilization, if the driver reports it (package
      pynvml).

    The maximum of each value over all processes is the metric `devices` of the run.
    """

    class Config(Callback.Config):
        every: Count = 10
        """Steps between two measurements of CPU, RAM and GPU usage."""

    config: Config
    file = Sinks()

    def on_train_start(self, trainer: TrainingRun) -> None:
        import psutil

        self.process, self.last, self.reported = psutil.Process(), dict[str, float](), False
        self.process.cpu_percent()  # the first call begins the measurement
        self.file = self.records("devices.jsonl", trainer)

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        if trainer.iteration % self.config.every:
            return
        ranks = trainer.world.gather(self.read(trainer.world.device))
        self.last = {name: max(found) for name in GREATEST if (found := [rank[name] for rank in ranks if name in rank])}
        self.file.write(trainer.iteration, {"processes": ranks})

    def metrics(self, trainer: TrainingRun, step: StepResult) -> Mapping[str, Any]:
        last, self.last = self.last, {}
        return {"devices": last} if last else {}

    def read(self, device: str) -> dict[str, Any]:
        """Returns the current CPU, RAM and GPU usage of this process, with the keys of `devices.jsonl`."""
        import psutil
        import torch

        found = {
            "host": socket.gethostname(),
            "cpu_percent": self.process.cpu_percent(),
            "ram_bytes": self.process.memory_info().rss,
            "ram_free_bytes": psutil.virtual_memory().available,
        }
        if device.startswith("cuda"):
            found["gpu_bytes"] = torch.cuda.memory_allocated(device)
            found["gpu_reserved_bytes"] = torch.cuda.memory_reserved(device)
            try:
                found["gpu_percent"] = torch.cuda.utilization(device)
            except Exception as error:  # NVMLError, such as on a MIG device; or nvidia-ml-py is not installed
                if not self.reported:
                    logger.warning("GPU utilization is not recorded: %s: %s", type(error).__name__, error)
                self.reported = True
        return found

    def on_train_end(self, trainer: TrainingRun) -> None:
        self.file.close()


class NormMonitor(Callback):
    """Measures L2 norms of the trained parameters: `norms.jsonl` has one line per measurement, by module.

    `weight` is the norm of the weights before the step, `gradient` that before clipping, `update` the norm of the
    change in the step. The norms over the network are the metric `norms` of the run. Sharded weights count once,
    independent of the number of processes.
    """

    class Config(Callback.Config):
        every: Count = 100
        """Steps between two measurements of the norms."""
        updates: bool = False
        """Whether weight updates are measured: needs a copy of the trained weights during a measured step."""

    config: Config
    file = Sinks()

    def on_train_start(self, trainer: TrainingRun) -> None:
        trained = {name: p for name, p in native_parameters(trainer.model.network).items() if p.requires_grad}
        self.parts = [module_path(name) for name in trained]
        self.parameters = list(trained.values())
        self.found: dict[str, dict[str, float]] = {}
        self.before: list[Tensor] = []
        self.file = self.records("norms.jsonl", trainer)

    def on_before_optimizer_step(self, trainer: TrainingRun, step: StepResult) -> None:
        if (step.inputs.index + 1) % self.config.every:
            return
        weights = [parameter.detach() for parameter in self.parameters]
        gradient = self.norms([parameter.grad for parameter in self.parameters])
        total = total_norm(gradient)
        if step.gradient is not None and 0 < total < step.gradient.norm < math.inf:  # it is clipped already
            gradient = {part: norm * step.gradient.norm / total for part, norm in gradient.items()}
        self.found = {"weight": self.norms(weights), "gradient": gradient}
        if self.config.updates:
            self.before = [weight.clone() for weight in weights]

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        if trainer.iteration % self.config.every or not self.found:
            return
        if self.before:
            changes = [after.detach() - before for after, before in zip(self.parameters, self.before, strict=True)]
            self.found["update"], self.before = self.norms(changes), []
        parts = {part: {kind: norms[part] for kind, norms in self.found.items()} for part in self.found["weight"]}
        self.file.write(trainer.iteration, {"parts": parts})

    def metrics(self, trainer: TrainingRun, step: StepResult) -> Mapping[str, Any]:
        found, self.found = self.found, {}
        return {"norms": {kind: total_norm(norms) for kind, norms in found.items()}} if found else {}

    def norms(self, tensors: Sequence[Tensor | None]) -> dict[str, float]:
        """Returns the L2 norm of each module, by module path, over all ranks. Collective.

        `tensors`: one tensor per trained parameter, such as its gradient, in the order of `self.parameters`; None is 0.
        """
        squares: dict[str, float] = defaultdict(float)
        for part, square in zip(self.parts, square_sums(tensors), strict=True):
            squares[part] += square
        return {part: square**0.5 for part, square in squares.items()}

    def on_train_end(self, trainer: TrainingRun) -> None:
        self.file.close()


def total_norm(norms: Mapping[str, float]) -> float:
    """Computes the L2 norm over all modules from the norms of the modules."""
    return math.hypot(*norms.values())


def square_sums(tensors: Sequence[Tensor | None]) -> list[float]:
    """Computes the sum of squares of each tensor over all shards; 0 for None. Collective for sharded tensors."""
    import torch
    from torch.distributed.tensor import DTensor, Partial, Replicate

    kinds: dict[Any, list[int]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        if tensor is not None:
            layout = tuple(p.is_shard() for p in tensor.placements) if isinstance(tensor, DTensor) else None
            kinds[(tensor.device_mesh, layout) if isinstance(tensor, DTensor) else None].append(index)
    found = [0.0] * len(tensors)
    for kind, indices in kinds.items():
        own = [local_part(tensors[index]) for index in indices]
        # Offloaded weights are on another device.
        sums = torch.stack([norm.double().square().to(own[0].device) for norm in torch._foreach_norm(own)])
        if kind is not None:
            mesh, layout = kind
            sums = DTensor.from_local(sums, mesh, [Partial() if cut else Replicate() for cut in layout]).full_tensor()
        for index, square in zip(indices, sums.tolist(), strict=True):
            found[index] = square
    return found


class ParamCount(Callback):
    """Writes `parameters.json` at the start: numbers of all and of trained parameters, in total and by module."""

    class Config(Callback.Config):
        """Config of the callback, which has no settings."""

    def on_run_start(self, trainer: TrainingRun) -> None:
        total, trained = Counter[str](), Counter[str]()
        for name, parameter in native_parameters(trainer.model.network).items():
            total[module_path(name)] += parameter.numel()
            trained[module_path(name)] += parameter.numel() * parameter.requires_grad
        if trainer.world.is_main:
            parts = {part: {"parameters": total[part], "trained": trained[part]} for part in total}
            content = {"parameters": total.total(), "trained": trained.total(), "parts": parts}
            self.write_json("parameters.json", content)


def module_path(name: str) -> str:
    """Returns the path of the module to which a parameter belongs, by which norms and parameter counts are grouped.

    That is the parameter name up to its first number. A name without a number loses its last component.

    `model.layers.3.mlp.up_proj.weight` → `model.layers.3`; `vae2llm.bias` → `vae2llm`.
    """
    parts = name.split(".")
    number = next((index for index, word in enumerate(parts) if word.isdigit()), None)
    return ".".join(parts[: len(parts) - 1 if number is None else number + 1])
