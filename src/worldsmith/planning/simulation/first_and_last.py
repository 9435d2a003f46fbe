"""What becomes of the weights before the steps and after them, by the run's own code: their first values, and saves.

Files are not touched: what would be read from one, or written to it, has its size alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from worldsmith.checkpoint.run.staging import lay_out
from worldsmith.checkpoint.sources import warm_start
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.models import weight_sum
from worldsmith.models.fill import fill
from worldsmith.models.lora import is_adapter
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.real_values import real_values, with_real_values

if TYPE_CHECKING:
    from worldsmith.models.converters.held_weight import HoldsWeight
    from worldsmith.models.model import Model
    from worldsmith.planning.simulation.memory_tracker import MemoryTracker
    from worldsmith.planning.simulation.simulated_run import TrackedRun

STORED = torch.bfloat16
"""In which weights are published."""


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


def load(run: TrackedRun, source: WeightSource | None = None) -> None:
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
    with opened(source), tracker.phase("loading"), tracker.in_main_memory():
        run.state._start_weights()


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


@contextmanager
def opened(source: WeightSource | None) -> Iterator[None]:
    """Within the block a run that reads its first weights finds these."""
    if source is None:
        yield
        return
    before, found = warm_start.open_weights, source
    warm_start.open_weights = lambda *_, **__: found
    try:
        yield
    finally:
        warm_start.open_weights = before


def save(run: TrackedRun) -> None:
    """A save as the run makes it, up to the first file: one in the background is written from a copy in main memory."""
    state: Any = run.state

    def keep(iteration: int, parts: Mapping[str, Mapping[str, Any]], *, background: bool, **others: Any) -> None:
        with real_values():
            size = lay_out(parts).size
        with run.tracker.in_main_memory():
            torch.empty(size * background, dtype=torch.uint8)

    state.checkpointer, state.loader = SimpleNamespace(world=run.world, save=keep), SimpleNamespace(state_dict=dict)
    state._rng_state = with_real_values(state._rng_state)
    with equal_sums_once():
        state.save(background=run.config.checkpoint.async_save)


@contextmanager
def equal_sums_once() -> Iterator[None]:
    """Within the block the sums over frozen weights of one shape are carried out once: they need the same memory."""
    before, known = weight_sum.bit_sum, dict[Any, int]()

    def bit_sum(tensor: Tensor) -> int:
        key = tensor.shape, tensor.dtype, str(getattr(tensor, "placements", ""))
        if key not in known:
            known[key] = before(tensor)
        return known[key]

    weight_sum.bit_sum = bit_sum
    try:
        yield
    finally:
        weight_sum.bit_sum = before
