"""`TrackedRun`: runs the trainer's own code on one rank under a `MemoryTracker`: build, load and step.

No files are read: weights of a file are replaced by empty tensors of the same size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from worldsmith.checkpoint.sources import warm_start
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.sections import CompileConfig
from worldsmith.distributed import activation_checkpointing
from worldsmith.distributed.adamw_8bit import AdamW8bit
from worldsmith.distributed.degrees import Degrees, plan_degrees
from worldsmith.distributed.memory import pinned_bytes
from worldsmith.distributed.world import World
from worldsmith.models.fill_parameters import fill
from worldsmith.models.local_part import local_part
from worldsmith.models.lora import is_adapter
from worldsmith.models.parameter_names import native_parameters
from worldsmith.monitor.throughput import Throughput
from worldsmith.planning.simulation.fake_world import fake_tensor_mode, fake_world, replaced
from worldsmith.planning.simulation.memory_tracker import MemoryTracker
from worldsmith.planning.simulation.operations import OperationCounter
from worldsmith.tasks.registry import task_of
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.optimizer import trainable_parameters
from worldsmith.training.parallel import prepare_network
from worldsmith.training.trainer import Trainer

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from worldsmith.models.converters.quantized_layer import QuantizedLayer
    from worldsmith.models.model import Model
    from worldsmith.planning.work import PhaseMemory
    from worldsmith.tasks.task import Task
    from worldsmith.training.step import StepResult

SIMULATED_CALLS = 2
"""Number of calls with the same sizes that are simulated; the others cost as much as the last one of them."""
STORED = torch.bfloat16
"""Assumed dtype of the weights in checkpoint files of released models."""


class TrackedRun(Trainer):
    """A trainer under a `MemoryTracker`, without run folder, dataset or checkpoints.

    Gradient clipping is the only callback. If the tracker has a fake mode, no memory is allocated. Call `build` and
    `step` inside the tracker's context.
    """

    def __init__(
        self,
        config: Trainer.Config,
        world: World,
        tracker: MemoryTracker,
        batches: Sequence[Any],
        *,
        prepare: Callable[[Model], None] = lambda model: None,
    ) -> None:
        """Builds the model on the meta device and shards its network.

        Args:
            config: Config with resolved references.
            world: Ranks of the run, real or simulated.
            tracker: Records memory, communication and operators.
            batches: Batches of every step.
            prepare: Called with the model before its network is sharded, to change it.
        """
        self.config, self.world, self.tracker, self.batches = config, world, tracker, batches
        self.pace = Throughput()
        self.begun: list[tuple[int, OperationCounter]] = []
        """(number of collectives so far, copy of the operation counts) at the start of each batch of the last step."""
        self.encoding: PhaseMemory | None = None
        """Phase `ENCODING_FIRST`; set after the encoding phase was simulated."""
        self.costs: dict[Hashable, list[CallCost]] = {}
        """Costs of encoding a clip, by the size of its video, and of updating a weight; at most two per size."""
        self.model: Model = config.model.config.build(device="meta")
        prepare(self.model)
        prepare_network(self.model, world)
        tracker.name_modules(self.model.network)

    def build(self, *, loads: bool = False) -> None:
        """Allocates weights, optimizer state, EMA weights and callbacks, in the phase "building".

        Args:
            loads: Load the initial weights too, in the phase "loading".
        """
        from worldsmith.training.run_state import RunState

        config, tracker = self.config, self.tracker
        with tracker.phase("building"):
            self.model.materialize(self.world.device)
            parameters = native_parameters(self.model.network)
            tracker.move_to_host_ram([parameters[name] for name in self.model.in_host_ram])
            if not loads:
                for layer in self.model.quantized_layers.values():
                    layer.store(torch.zeros(layer.weight.shape))
            self.task: Task = task_of(config.model.name)(
                model=self.model, objective=config.objective, data=config.dataloader_train, world=self.world
            )
            if self.finds_all_encoded:
                self.task.dummy_data.assume_cached()
            if tracker.fake_mode is not None and hasattr(self.task, "encode_part"):
                self.task.encode_part = partial(self._encode_part, self.task.encode_part)
            stub: Any = SimpleNamespace(world=self.world)
            self.state = RunState(config, model=self.model, loader=None, checkpointer=stub, run_folder=None)  # type: ignore[arg-type]
        if isinstance(self.state.optimizer, AdamW8bit) and tracker.fake_mode is not None and not tracker.only_traffic:
            vars(self.state.optimizer)["_update"] = partial(self._update_part, self.state.optimizer._update)
        if loads:
            load_initial_weights(self, EmptyWeights(self.model) if tracker.fake_mode is not None else None)
        self.callbacks = {
            name: callback.build(folder=None)
            for name, callback in config.trainer.callbacks.items()
            if isinstance(callback, GradClip.Config)
        }
        self.tag_weights()
        if self.state.ema is not None:
            tracker.tag("average", self.state.ema.ema_weights.values())
            tracker.wrap_as_phase("average", self.state.ema, "update")
        tracker.wrap_as_phase("forward", self.task, "loss", before=self._begin_batch)
        tracker.wrap_as_phase("optimizer", self.state.optimizer, "step")

    @property
    def finds_all_encoded(self) -> bool:
        """Whether the batches contain latents of clips; the run then needs no encoder."""
        return any(getattr(sample, "latents", None) is not None for batch in self.batches for sample in batch)

    def prime(self) -> None:
        """Creates the optimizer state by one step on zero gradients, so that the next step does not allocate it."""
        names_without_gradients = tuple(
            self.model.config.names_without_gradients()
        )  # parameters that never receive gradients
        for name, parameter in trainable_parameters(self.model.network).items():
            if not name.startswith(names_without_gradients):
                parameter.grad = torch.zeros_like(parameter)
        self.state.optimizer.step()
        if self.model.config.parallelism.offload == "all":
            self._hold_gradients()
        self.state.optimizer.zero_grad(set_to_none=True)
        states = [value for state in self.state.optimizer.state.values() for value in state.values()]
        self.tracker.tag("moments", filter(torch.is_tensor, states))

    def _hold_gradients(self) -> None:
        """Allocates page-locked memory for gradients in host RAM; FSDP copies them there, as from a GPU.

        PyTorch keeps this memory between steps.
        """
        from worldsmith.distributed.offload import groups_of, host_params

        for param in (param for group in groups_of(self.model.network) for param in host_params(group)):
            if (gradient := param.sharded_param.grad) is not None:
                local = local_part(gradient)
                with self.tracker.in_host_ram():
                    pinned = torch.empty(pinned_bytes(local.nbytes) // local.itemsize, dtype=local.dtype)
                held = pinned[: local.numel()].view(local.shape)
                vars(param)["to_sharded_dtensor"] = copied_first(param.to_sharded_dtensor, held)

    def tag_weights(self) -> None:
        """Tags parameters, buffers and quantized base weights as "parameters"."""
        network, layers = self.model.network, self.model.quantized_layers.values()
        held = [value for layer in layers for value in vars(layer).values() if torch.is_tensor(value)]
        self.tracker.move_to_host_ram([value for layer in layers for value in layer.host_tensors.values()])
        self.tracker.tag("parameters", [*network.parameters(), *network.buffers(), *held])

    def step(self) -> StepResult:
        """Runs one training step over `self.batches`; call `prime` before, to create the optimizer state."""
        self.begun = []
        with self.tracker.phase("backward"):  # everything except forward passes and updates
            return self.training_step(iter(self.batches))

    def measure_gradients(self, step: StepResult) -> StepResult:
        self.tracker.tag("gradients", [parameter.grad for parameter in self.state.parameters])
        return super().measure_gradients(step)

    def _encode_part(self, encode: Callable[[Any], Tensor], part: Any) -> Tensor:
        """Encodes a clip; from the third clip of a size on, only its cost is counted (the first loads the VAE)."""
        if part.video is None or self.tracker.only_traffic:
            return encode(part)
        latents, cost = self._call_or_count(tuple(part.video.shape), partial(encode, part))
        if latents is None:
            return torch.empty(cost.shape, dtype=cost.dtype)
        cost.shape, cost.dtype = latents.shape, latents.dtype
        return latents

    def _update_part(self, update: Callable[..., None], weight: Tensor, grad: Tensor, state: Any, *others: Any) -> None:
        """Updates rows of a weight in 8 bits; from the third weight of a size on, only the cost is counted."""
        tensors = (weight, grad, *state.values())
        sizes = tuple((tuple(tensor.shape), tensor.dtype, tensor.is_contiguous()) for tensor in tensors)
        self._call_or_count((sizes, *state), partial(update, weight, grad, state, *others))

    def _call_or_count(self, key: Hashable, call: Callable[[], Any]) -> tuple[Any, CallCost]:
        """Calls a function, or only counts the cost of its last call if there were enough with the same `key`.

        Returns:
            The result, or None if the function was not called, and the cost of the call.
        """
        tracker, known = self.tracker, self.costs.setdefault(key, [])
        if len(known) == SIMULATED_CALLS:
            cost = known[-1]
            tracker.operations = tracker.operations.extrapolate(cost.before, cost.after, 1)
            for in_host_ram, peak in enumerate(cost.peaks):
                with tracker.in_host_ram(bool(in_host_ram)):
                    torch.empty(peak, dtype=torch.uint8)
            return None, cost
        before, events = copy(tracker.operations), len(tracker.events)
        result = call()
        known.append(CallCost(before, copy(tracker.operations), tracker.peaks_since(events)))
        return result, known[-1]

    def _begin_batch(self) -> None:
        self.tracker.tag_survivors("gradients", "backward")
        self.begun.append((len(self.tracker.traffic.trace), copy(self.tracker.operations)))


@dataclass(slots=True)
class CallCost:
    """Operations and memory of encoding one clip or updating one weight."""

    before: OperationCounter
    after: OperationCounter
    peaks: tuple[int, int]
    """Max bytes allocated on the device and in host RAM during the call, in addition to those before."""
    shape: Sequence[int] = ()
    """Shape of the resulting latents."""
    dtype: torch.dtype = STORED
    """Dtype of the resulting latents."""


@contextmanager
def simulated_run(
    config: Trainer.Config,
    batches: Sequence[Any],
    *,
    ranks: int,
    rank: int = 0,
    prepare: Callable[[Model], None] = lambda model: None,
    only_traffic: bool = False,
    mode: FakeTensorMode | None = None,
    loads: bool = False,
) -> Iterator[TrackedRun]:
    """Context manager: a built run of one simulated rank on fake tensors; use it within the block.

    Layers are not compiled, and the latent cache is not read.

    Args:
        config: Config with resolved references.
        batches: Batches of every step.
        ranks: Number of ranks of the run.
        rank: The simulated rank.
        prepare: Called with the model before its network is sharded, to change it.
        only_traffic: Record collectives only, which is faster.
        mode: Fake mode; runs with the same mode can share tensors. None: a new one.
        loads: Load the initial weights too.
    """
    config = as_simulated(config, batches=len(batches))
    degrees = plan_degrees(config.model.config.parallelism, ranks)
    with ExitStack() as stack:
        world = stack.enter_context(fake_world(rank, ranks, context_parallel=degrees.context))
        mode = mode or fake_tensor_mode()
        tracker = MemoryTracker(mode, only_traffic=only_traffic)
        everyone = tuple(range(ranks))
        world = replace(world, note=lambda op, size: tracker.traffic.add(op, everyone, size, torch.float64))
        inputs_on_host = partial(saved_in_host_ram, tracker)
        stack.enter_context(replaced(activation_checkpointing, "save_on_cpu", inputs_on_host))
        run = TrackedRun(config, world, tracker, batches, prepare=prepare)
        stack.enter_context(mode)
        stack.enter_context(run.tracker)
        run.tracker.traffic.names = group_names(degrees, rank, ranks)
        run.build(loads=loads)
        yield run


def saved_in_host_ram(tracker: MemoryTracker, *, pin_memory: bool) -> saved_tensors_hooks:
    """Returns a context manager like `save_on_cpu` of torch, for a simulation, in which all tensors are on the CPU."""

    def pack(tensor: Tensor) -> Tensor:
        with tracker.in_host_ram():
            return tensor.clone()

    def unpack(tensor: Tensor) -> Tensor:
        with tracker.in_host_ram(False):
            return tensor.clone()

    return saved_tensors_hooks(pack, unpack)


def copied_first(function: Callable[[Tensor], Any], target: Tensor) -> Callable[[Tensor], Any]:
    """Returns a function that copies its argument to `target` and calls `function` with that."""
    return lambda value: function(target.copy_(value))


class EmptyWeights(WeightSource):
    """Weight source that reads no files: empty tensors with the shapes of a model's weights, sharded by rank."""

    def __init__(self, model: Model) -> None:
        self.describe = "unused weights"
        names = native_parameters(model.network)
        self.shapes = {name: list(value.shape) for name, value in names.items() if not is_adapter(name)}

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        for name, tensor in tensors.items():
            fill(tensor, EmptyTensor(self.shapes[name]))

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        return STORED


class EmptyTensor:
    """Stand-in for a tensor in a file; indexing returns an empty tensor with the shape of the slice."""

    def __init__(self, shape: list[int]) -> None:
        self.shape = shape

    def __getitem__(self, part: Any) -> Tensor:
        sizes = [piece.stop - piece.start for piece in part] if isinstance(part, tuple) else self.shape
        return torch.empty(sizes, dtype=STORED)


def load_initial_weights(run: TrackedRun, source: WeightSource | None = None) -> None:
    """Loads or initializes the weights of a new run, in the phase "loading".

    Values are created or read in host RAM and copied to the device; quantization runs on the device. In a simulation
    only the first and the last of equal layers are quantized: the layers between them need the same memory for it.

    Args:
        run: The built run.
        source: Weights to load; None: as the config specifies.
    """
    tracker, layers = run.tracker, list(run.model.quantized_layers.values())
    remaining: Counter[Any] = Counter(map(conversion_key, layers))
    first: dict[Any, QuantizedLayer] = {}

    def hold(layer: QuantizedLayer, convert: Callable[[Tensor], None], value: Tensor) -> None:
        key = conversion_key(layer)
        remaining[key] -= 1
        if tracker.fake_mode is None or not remaining[key] or first.setdefault(key, layer) is layer:
            convert(value)
        else:
            copy_sizes(first[key], layer)

    for layer in layers:
        vars(layer)["quantize"] = held_on_device(partial(hold, layer, layer.quantize), tracker)
    opened = nullcontext() if source is None else replaced(warm_start, "open_weights", lambda *_, **__: source)
    with opened, tracker.phase("loading"), tracker.in_host_ram():
        run.state.weights.load_initial()


def conversion_key(layer: QuantizedLayer) -> Hashable:
    """Returns a key that is equal for layers whose quantization needs the same memory."""
    return type(layer), layer.weight.shape, layer.quantized_bytes


def copy_sizes(first: QuantizedLayer, layer: QuantizedLayer) -> None:
    """Sets the tensors of `layer` to empty ones with the sizes of those of `first`; copies the weight checksum."""
    for name, value in vars(first).items():
        if torch.is_tensor(value):
            setattr(layer, name, torch.empty_like(value))
    layer.source_checksum = first.source_checksum


def held_on_device(hold: Callable[[Tensor], None], tracker: MemoryTracker) -> Callable[[Tensor], None]:
    def run(value: Tensor) -> None:
        with tracker.in_host_ram(False):
            hold(value.to(torch.float32, copy=True))  # as a copy from host RAM to a GPU

    return run


def as_simulated(config: Trainer.Config, *, batches: int | None = None) -> Trainer.Config:
    """Returns a copy of the config for a simulation: no compiled layers, no latent cache.

    Args:
        config: Config of the run.
        batches: Batches per step; None: as in `config`.
    """
    model = replace(config.model.config, compile=CompileConfig(enabled=False))
    data: Any = config.dataloader_train
    if getattr(data, "latent_cache", ""):
        data = replace(data, latent_cache="")
    loop = replace(config.trainer, grad_accum_iter=batches or config.trainer.grad_accum_iter)
    return replace(config, model=replace(config.model, config=model), dataloader_train=data, trainer=loop)


def group_names(degrees: Degrees, rank: int, ranks: int) -> dict[tuple[int, ...], str]:
    """Returns the names of the process groups that contain `rank`, such as "dp_shard", by their ranks (ascending)."""
    num_shards, context = degrees.weights, degrees.context
    start = rank // num_shards * num_shards
    names = {
        tuple(range(rank // context * context, rank // context * context + context)): "context",
        tuple(range(rank % num_shards, ranks, num_shards)): "dp_replicate",
        tuple(range(start, start + num_shards)): "dp_shard",
    }
    return names if tuple(range(ranks)) in names else {tuple(range(ranks)): "world", **names}
