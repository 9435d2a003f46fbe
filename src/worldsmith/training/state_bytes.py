"""Computes the exact bytes of weights, gradients, optimizer state and EMA weights of a process, and of a checkpoint.

Sharding splits the first dimension of each weight into equal chunks; the last ones are shorter or empty. FSDP2 pads
chunks of weights and gradients to the size of the first one; optimizer state and EMA weights are not padded. torch is
imported only for optimizer settings that can change its state.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldsmith.distributed.degrees import Degrees
from worldsmith.distributed.memory import pinned_bytes
from worldsmith.models.weights.weight_table import Weight
from worldsmith.training.optimizer import ParameterState, parameter_state
from worldsmith.training.parallel import is_sharded

if TYPE_CHECKING:
    from worldsmith.models.model import Model
    from worldsmith.training.run_config import RunConfig

FLOAT32 = 4
"""Bytes per element of EMA weights, adapters and all values that are reduced over ranks."""
COUNTER = 8
"""Bytes of a counter (int64) and of a metric (float64) in a checkpoint."""
RANDOM = 5056 + 8 * (626 + 1 + 627 + 1)
"""Bytes of the RNG states of a process: torch, NumPy and Python."""
RANDOM_GPU = 16
"""Bytes of the RNG state of a GPU."""
PIECE = 1830
"""Approximate overhead of a tensor shard on disk, including its share of all small files."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of the training state of a process between steps and during gradient accumulation, without activations."""

    parameters: int
    gradients: int
    """Bytes of the gradients at the optimizer step."""
    accumulated: int
    """Bytes of the gradients between two packs of a step; 0 if a step has one pack."""
    moments: int
    """Bytes of the optimizer state, including the step count of each parameter."""
    average: int
    offloaded: int = 0
    """Bytes in host RAM (`parallelism.offload`), in addition to `parts`: weights and their EMA weights, and of trained
    weights also gradients and optimizer state."""

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by category: `weights`, `gradients` (peak within a step), `moments` (optimizer state) and `average`.

        `average` are the EMA weights; it is omitted if the process has none.
        """
        parts = {
            "weights": self.parameters,
            "gradients": max(self.gradients, self.accumulated),
            "moments": self.moments,
            "average": self.average,
        }
        return {name: count for name, count in parts.items() if count or name != "average"}

    @property
    def total(self) -> int:
        """Bytes of the training state: the sum of `parts`."""
        return sum(self.parts.values())


def state_bytes(table: Mapping[str, Weight], run: RunConfig, degrees: Degrees, rank: int = 0) -> StateBytes:
    """Computes the training state of one process in bytes; rank 0 has the most.

    Args:
        table: All weights by name, see `models.weights.weight_table`.
        run: Config of the run.
        degrees: Parallelism degrees.
        rank: Index of the rank.
    """
    model: Model.Config = run.model.config
    size = degrees.replicate * degrees.weights
    num_shards, index = degrees.weights, rank % degrees.weights
    stored = {
        name: shard_elements(weight, num_shards) * bytes_per_number(weight, model)
        if weight.quantized_bytes is None
        else weight.quantized_bytes
        for name, weight in table.items()
    }
    updated = {name: weight for name, weight in table.items() if weight.trained and weight.reached}
    states = zip(updated, optimizer_states(list(updated.values()), run), strict=True)
    moments = {
        name: int(shard_elements(updated[name], num_shards, index) * sum(state.element_bytes)) + sum(state.other_bytes)
        for name, state in states
    }
    average = {
        name: FLOAT32 * shard_elements(weight, num_shards, index)
        for name, weight in table.items()
        if is_averaged(weight, model)
    }
    on_host = names_in_host_ram(table, model)
    on_device = table.keys() - on_host
    gradients = sum(stored[name] for name in on_device & updated.keys())
    accumulated = 0
    if run.trainer.grad_accum_iter > 1:
        if is_sharded(model, size) and not model.parallelism.reduce_every_pack:
            accumulated = FLOAT32 * sum(weight.numbers for weight in updated.values())
        elif is_sharded(model, size) and degrees.replicate > 1:
            accumulated = FLOAT32 * sum(shard_elements(weight, num_shards) for weight in updated.values())
        else:
            accumulated = gradients

    def sum_of(sizes: Mapping[str, int], names: Collection[str]) -> int:
        return sum(count for name, count in sizes.items() if name in names)

    return StateBytes(
        parameters=sum_of(stored, on_device),
        gradients=gradients,
        accumulated=accumulated,
        moments=sum_of(moments, on_device),
        average=sum_of(average, on_device),
        offloaded=sum(sum_of(sizes, on_host) for sizes in (stored, moments, average))
        + sum(pinned_bytes(stored[name]) for name in on_host & updated.keys()),
    )


def shard_elements(weight: Weight, num_shards: int, index: int = 0) -> int:
    """Returns the elements in chunk `index` of a weight that is split into `num_shards` chunks along dimension 0."""
    rows, *inner = weight.shape
    chunk = -(-rows // num_shards)
    return max(0, min(rows - index * chunk, chunk)) * math.prod(inner)


def bytes_per_number(weight: Weight, model: Model.Config) -> int:
    return FLOAT32 if weight.exact or model.parallelism.fsdp_master_dtype == "float32" else 2


def optimizer_states(weights: Sequence[Weight], run: RunConfig) -> list[ParameterState]:
    """Returns the optimizer state (bytes of its tensors) of each trained weight, in order."""
    sizes = [(bytes_per_number(weight, run.model.config), weight.shape) for weight in weights]
    states = {size: parameter_state(run.optimizer, *size) for size in set(sizes)}
    return [states[size] for size in sizes]


def is_averaged(weight: Weight, model: Model.Config) -> bool:
    return model.ema.enabled and (weight.trained or not model.ema.trainable_only)


def names_in_host_ram(table: Mapping[str, Weight], model: Model.Config) -> set[str]:
    """Returns the names of the weights in host RAM. Small frozen float32 weights count as weights on the GPU."""
    offload, fraction = model.parallelism.offload, model.parallelism.offload_fraction
    if offload == "none":
        return set()
    names = {name for name, weight in table.items() if (offload == "all" if weight.trained else not weight.exact)}
    if fraction == 1:
        return names
    from worldsmith.distributed.activation_checkpointing import spread_evenly

    paths = {name: layer_path(name, model.layer_lists) for name in table}
    layers = [path for path in dict.fromkeys(paths.values()) if path]
    resident = set(layers).difference(spread_evenly(layers, fraction))
    return {name for name in names if paths[name] not in resident}


def layer_path(name: str, lists: Sequence[str]) -> str:
    """Returns the path of the layer of a weight, such as "blocks.3"; "" if it is in none of the lists of layers."""
    found = next((path for path in lists if name.startswith(f"{path}.")), None)
    return "" if found is None else f"{found}.{name[len(found) + 1 :].split('.')[0]}"


@dataclass(frozen=True, slots=True)
class CheckpointBytes:
    """Bytes of one checkpoint over all processes: raw weights, EMA weights, optimizer state, and the rest."""

    weights: int
    average: int
    moments: int
    other: int
    """Bytes of counters, schedule states and RNG states."""
    pieces: int
    """Number of tensor chunks in the checkpoint files, over all processes."""

    @property
    def tensors(self) -> int:
        """Exact size of all tensors of the checkpoint in bytes."""
        return self.weights + self.average + self.moments + self.other

    @property
    def files(self) -> int:
        """Estimated size of the checkpoint files in bytes."""
        return self.tensors + PIECE * self.pieces


def checkpoint_bytes(
    table: Mapping[str, Weight], run: RunConfig, degrees: Degrees, *, gpus: bool = True
) -> CheckpointBytes:
    """Computes the size of a checkpoint after the first step.

    Args:
        table: All weights by name, see `models.weights.weight_table`.
        run: Config of the run.
        degrees: Parallelism degrees.
        gpus: Whether each process has a GPU, whose RNG state is saved.
    """
    model: Model.Config = run.model.config
    saved = [weight for weight in table.values() if weight.trained or run.checkpoint.save_weights == "all"]
    averaged = [weight for weight in saved if is_averaged(weight, model)]
    updated = [weight for weight in table.values() if weight.trained and weight.reached]
    states = list(zip(updated, optimizer_states(updated, run), strict=True))
    processes, num_shards = degrees.replicate * degrees.weights, degrees.weights
    best, scaler = 4 * (run.checkpoint.keep_best is not None), 0
    if model.precision == "float16" and run.trainer.loss_scale.growth_interval:
        scaler = 2
    random_states = 5 + gpus
    return CheckpointBytes(
        weights=sum(weight.numbers * bytes_per_number(weight, model) for weight in saved),
        average=FLOAT32 * sum(weight.numbers for weight in averaged),
        moments=sum(
            int(weight.numbers * sum(state.element_bytes)) + sum(state.other_bytes) for weight, state in states
        ),
        other=COUNTER * (5 + best + scaler) + processes * (RANDOM + RANDOM_GPU * gpus),
        pieces=sum(chunks(weight, num_shards) for weight in [*saved, *averaged])
        + sum(
            len(state.element_bytes) * chunks(weight, num_shards) + len(state.other_bytes) for weight, state in states
        )
        + (5 + best + scaler)
        + processes * random_states,
    )


def chunks(weight: Weight, num_shards: int) -> int:
    """Returns the number of chunks of a weight in `num_shards` shards; all empty chunks together count as one."""
    rows = weight.shape[0]
    filled = -(-rows // -(-rows // num_shards))
    return filled + (filled < num_shards)
