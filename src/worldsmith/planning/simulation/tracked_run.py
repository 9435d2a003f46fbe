"""`TrackedRun`: a run of one rank under a `MemoryTracker`, by the trainer's own code: built, loaded and stepped.

Files are not touched: what would be read from one has its size alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from worldsmith.checkpoint.sources import warm_start
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.sections import CompileConfig
from worldsmith.distributed.degrees import plan_degrees
from worldsmith.distributed.world import World
from worldsmith.models.fill import fill
from worldsmith.models.lora import is_adapter
from worldsmith.models.parameter_names import native_parameters
from worldsmith.monitor.throughput import Throughput
from worldsmith.planning.simulation.fake_world import fake_world, replaced, without_memory
from worldsmith.planning.simulation.memory_tracker import MemoryTracker
from worldsmith.planning.simulation.operations import OperationCounter
from worldsmith.tasks.registry import task_of
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.optimizer import trainable_parameters
from worldsmith.training.parallel import prepare_network
from worldsmith.training.trainer import Trainer

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from worldsmith.distributed.degrees import Degrees
    from worldsmith.models.converters.held_weight import HoldsWeight
    from worldsmith.models.model import Model
    from worldsmith.tasks.task import Task
    from worldsmith.training.step import StepResult

STORED = torch.bfloat16
"""In which weights are published."""


class TrackedRun(Trainer):
    """What of a trainer makes steps, under a `MemoryTracker`: no run folder, no data set, no saves.

    With a tracker that has a fake mode nothing gets memory. `batches` are those of each step. Of the callbacks those
    that act on gradients are there. Call `build` and the steps inside the tracker.
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
        """`prepare` may change the model, on the meta device, before its network is sharded."""
        self.config, self.world, self.tracker, self.batches = config, world, tracker, batches
        self.pace = Throughput()
        self.begun: list[tuple[int, OperationCounter]] = []
        """What had been sent and computed when each batch of the last step began."""
        self.encode_bytes = 0
        """That of a `StepWork`, once clips have been encoded."""
        self.model: Model = config.model.config.build(device="meta")
        prepare(self.model)
        prepare_network(self.model, world)
        tracker.name_modules(self.model.network)

    def build(self, *, loads: bool = False) -> None:
        """Everything that lives as long as the run. `loads`: the weights get their first values, in their own phase."""
        from worldsmith.training.run_state import RunState

        config, tracker = self.config, self.tracker
        with tracker.phase("building"):
            self.model.materialize(self.world.device)
            if not loads:
                for layer in self.model.held.values():
                    layer.hold(torch.zeros(layer.weight.shape))
            self.task: Task = task_of(config.model.name)(
                model=self.model, objective=config.objective, data=config.dataloader_train, world=self.world
            )
            if self.finds_all_encoded:
                self.task.dummy_data.assume_cached()
            place: Any = SimpleNamespace(world=self.world)
            self.state = RunState(config, model=self.model, loader=None, checkpointer=place, run_folder=None)  # type: ignore[arg-type]
        if loads:
            load_initial_weights(self, WithoutFiles(self.model) if tracker.fake_mode is not None else None)
        self.callbacks = {
            name: callback.build(folder=None)
            for name, callback in config.trainer.callbacks.items()
            if isinstance(callback, GradClip.Config)
        }
        self.tag_weights()
        if self.state.ema is not None:
            tracker.tag("average", self.state.ema.average.values())
            tracker.within("average", self.state.ema, "update")
        tracker.within("forward", self.task, "loss", before=self._begin_batch)
        tracker.within("optimizer", self.state.optimizer, "step")

    @property
    def finds_all_encoded(self) -> bool:
        """Whether its samples are as a cache gives them."""
        return any(getattr(sample, "latents", None) is not None for batch in self.batches for sample in batch)

    def prime(self) -> None:
        """A step of the optimizer on gradients of zero, which makes its states: what comes next is a steady step."""
        unreached = tuple(self.model.config.unreached())  # which never have any
        for name, parameter in trainable_parameters(self.model.network).items():
            if not name.startswith(unreached):
                parameter.grad = torch.zeros_like(parameter)
        self.state.optimizer.step()
        self.state.optimizer.zero_grad(set_to_none=True)
        states = [value for state in self.state.optimizer.state.values() for value in state.values()]
        self.tracker.tag("moments", filter(torch.is_tensor, states))

    def tag_weights(self) -> None:
        """Says to the tracker what the network's weights are, also those in another form than parameters."""
        network, layers = self.model.network, self.model.held.values()
        held = [value for layer in layers for value in vars(layer).values() if torch.is_tensor(value)]
        self.tracker.tag("parameters", [*network.parameters(), *network.buffers(), *held])

    def step(self) -> StepResult:
        """The trainer's step over `batches`."""
        self.begun = []
        with self.tracker.phase("backward"):  # what is no forward pass and no update
            return self.training_step(iter(self.batches))

    def measure_gradients(self, step: StepResult) -> StepResult:
        self.tracker.tag("gradients", [parameter.grad for parameter in self.state.parameters])
        return super().measure_gradients(step)

    def _begin_batch(self) -> None:
        self.tracker.tag_survivors("gradients", "backward")
        self.begun.append((len(self.tracker.traffic.trace), copy(self.tracker.operations)))


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
    """A built run of one rank of `ranks`, without memory; steps and all else are to be made within the block.

    `config` has its references resolved. Layers run uncompiled, and nothing is read from a latent cache. `prepare`: see
    `TrackedRun`. `only_traffic` leaves memory and operations unseen, which is quicker. Runs with the same `mode` may
    share tensors.
    """
    config = as_simulated(config, batches=len(batches))
    degrees = plan_degrees(config.model.config.parallelism, ranks)
    with ExitStack() as stack:
        world = stack.enter_context(fake_world(rank, ranks, context_parallel=degrees.context))
        mode = mode or without_memory()
        tracker = MemoryTracker(mode, only_traffic=only_traffic)
        everyone = tuple(range(ranks))
        world = replace(world, note=lambda op, size: tracker.traffic.add(op, everyone, size, torch.float64))
        run = TrackedRun(config, world, tracker, batches, prepare=prepare)
        stack.enter_context(mode)
        stack.enter_context(run.tracker)
        run.tracker.traffic.names = group_names(degrees, rank, ranks)
        run.build(loads=loads)
        yield run


class WithoutFiles(WeightSource):
    """Weights as a folder of safetensors has them: a rank reads its part of each."""

    def __init__(self, model: Model) -> None:
        self.path, self.describe, self.settings = Path(), "weights that are not looked at", {}
        self.average_shapes, self.copies, self.unknown = {}, {}, []
        names = native_parameters(model.network)
        self.shapes = {name: list(value.shape) for name, value in names.items() if not is_adapter(name)}

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        for name, tensor in tensors.items():
            fill(tensor, Stored(self.shapes[name]))

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        return STORED


class Stored:
    """A tensor in a file, of which a part can be read."""

    def __init__(self, shape: list[int]) -> None:
        self.shape = shape

    def __getitem__(self, part: Any) -> Tensor:
        sizes = [piece.stop - piece.start for piece in part] if isinstance(part, tuple) else self.shape
        return torch.empty(sizes, dtype=STORED)


def load_initial_weights(run: TrackedRun, source: WeightSource | None = None) -> None:
    """The phase "loading": the first weights of a new run, drawn, or read from `source`; None: from its own files.

    Values are made and read in main memory, and copied; what a layer that holds its weight in another form makes of it
    is on the device. In a simulation only the first and the last of equal layers convert their weight: the layers
    between them need the same memory for it, next to fewer layers that are done.
    """
    tracker, layers = run.tracker, list(run.model.held.values())
    left: Counter[Any] = Counter(map(conversion_key, layers))
    first: dict[Any, HoldsWeight] = {}

    def hold(layer: HoldsWeight, convert: Callable[[Tensor], None], value: Tensor) -> None:
        key = conversion_key(layer)
        left[key] -= 1
        if tracker.fake_mode is None or not left[key] or first.setdefault(key, layer) is layer:
            convert(value)
        else:
            copy_sizes(first[key], layer)

    for layer in layers:
        vars(layer)["hold"] = held_on_device(partial(hold, layer, layer.hold), tracker)
    opened = nullcontext() if source is None else replaced(warm_start, "open_weights", lambda *_, **__: source)
    with opened, tracker.phase("loading"), tracker.in_main_memory():
        run.state.weights.load_initial()


def conversion_key(layer: HoldsWeight) -> Hashable:
    """Layers with the same key need the same memory for converting their weight."""
    return type(layer), layer.weight.shape, layer.held_bytes


def copy_sizes(first: HoldsWeight, layer: HoldsWeight) -> None:
    """Gives `layer` tensors of the sizes that `first` made of its weight."""
    for name, value in vars(first).items():
        if torch.is_tensor(value):
            setattr(layer, name, torch.empty_like(value))
    layer.taken = first.taken


def held_on_device(hold: Callable[[Tensor], None], tracker: MemoryTracker) -> Callable[[Tensor], None]:
    def run(value: Tensor) -> None:
        with tracker.in_main_memory(False):
            hold(value.to(torch.float32, copy=True))  # as to a device that is not the processor

    return run


def as_simulated(config: Trainer.Config, *, batches: int | None = None) -> Trainer.Config:
    """The run without what a simulation does not have: compiled layers and files. `batches`: those of a step."""
    model = replace(config.model.config, compile=CompileConfig(enabled=False))
    data: Any = config.dataloader_train
    if getattr(data, "latent_cache", ""):
        data = replace(data, latent_cache="")
    loop = replace(config.trainer, grad_accum_iter=batches or config.trainer.grad_accum_iter)
    return replace(config, model=replace(config.model, config=model), dataloader_train=data, trainer=loop)


def group_names(degrees: Degrees, rank: int, ranks: int) -> dict[tuple[int, ...], str]:
    """What the groups of a rank are for, by their ranks."""
    shares, context = degrees.weights, degrees.context
    start = rank // shares * shares
    names = {
        tuple(range(rank // context * context, rank // context * context + context)): "context",
        tuple(range(rank % shares, ranks, shares)): "dp_replicate",
        tuple(range(start, start + shares)): "dp_shard",
    }
    return names if tuple(range(ranks)) in names else {tuple(range(ranks)): "world", **names}
