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
from dataclasses import dataclass
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

    from worldsmith.training.step import StepResult
    from worldsmith.training.validation import Validation

logger = logging.getLogger(__name__)

FILE = "metrics.jsonl"
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

    def after_training_step(self, trainer: TrainingRun, step: StepResult) -> None:
        number, loop = trainer.iteration, trainer.config.trainer
        if not (number % loop.logging_iter == 0 or number in (1, loop.max_iter) or step.skipped):
            return
        metrics = step_metrics(step, trainer)  # on every rank: there are sums over them
        for callback in trainer.callbacks.values():
            metrics |= callback.metrics(trainer, step)
        self._write(number, metrics)

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


def step_metrics(step: StepResult, trainer: TrainingRun) -> dict[str, Any]:
    """Returns the metrics of one step for metrics.jsonl, such as loss, lr, grad_norm and tokens_per_second. Collective.

    Values refer to all ranks, but durations (seconds) and memory (bytes) to this rank. Unknown values are None.
    """
    data = count_data(trainer)
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
        **utilization_metrics(step, trainer),
        **({"loss_scale": step.loss_scale} if trainer.config.model.config.precision == "float16" else {}),
        "skipped": step.skipped,
        "skipped_total": trainer.state.guard.skipped,
        "failed_saves": trainer.failed_saves,
        "peak_memory_bytes": peak_memory_bytes(trainer.world.device),
        "memory_before_bytes": trainer.memory_before,
        "rejected": data.rejected,
        "loaded": data.loaded,
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


def utilization_metrics(step: StepResult, trainer: TrainingRun) -> dict[str, Any]:
    """Returns the metrics `padding_share` and `model_flops_share` of a step. Collective.

    `padding_share` is the fraction of padding tokens. `model_flops_share` is the model FLOPs utilization (MFU); it is
    omitted if the peak of the device or the FLOPs of the model are not known.
    """
    task, world = trainer.task, trainer.world
    peak = peak_flops(world.device, trainer.config.model.config.precision)
    flops = [task.count_flops(batch) for batch in step.inputs.batches] if peak else []
    needed = sum(count for count in flops if count is not None)
    padding, total = world.data_sum(sum(map(task.padding, step.inputs.batches)), needed)
    metrics = {"padding_share": padding / (padding + step.tokens) if step.tokens else None}
    if peak and total and step.seconds:
        metrics["model_flops_share"] = total / (step.seconds * peak * world.size)
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


@dataclass(frozen=True, slots=True)
class DataCounts:
    """Counts of skipped samples and other events of data loading over all ranks, since this process started."""

    rejected: dict[str, int]
    """Number of skipped samples by reason."""
    loaded: dict[str, int]
    """Other counts of the loader and of the task, by name."""


def count_data(trainer: TrainingRun) -> DataCounts:
    """Sums the counts of skipped samples and the counters of data loader and task over all ranks. Collective."""
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
    return DataCounts(dict(sorted(rejected.items())), dict(sorted(loaded.items())))


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
        sums = torch.stack([norm.double().square() for norm in torch._foreach_norm(own)])
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
