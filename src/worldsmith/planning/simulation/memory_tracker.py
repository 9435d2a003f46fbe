"""`MemoryTracker`: which tensors are alive at each moment of a run, in a real one or in one without memory."""

from __future__ import annotations

import re
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from worldsmith.models.local_part import local_part
from worldsmith.models.real_values import real_values
from worldsmith.planning.simulation.fake_world import replaced
from worldsmith.planning.simulation.operations import OperationCounter
from worldsmith.planning.simulation.phase_peaks import Change, memory_after
from worldsmith.planning.simulation.traffic import TrafficRecorder
from worldsmith.planning.work import PhaseMemory

COMMUNICATED = "communication"
"""Kind of buffers that collectives read or write."""
GATHERED = "gathered"
"""Kind of whole weights that FSDP gathers."""
PASSES = ("forward", "encoding", "validation", "sampling")
INDEX_TYPES = {torch.int64, torch.int32, torch.bool}
"""Types of indices and masks, which keep values that they are made from in a simulation: sizes depend on them."""
LONGEST_TABLE = 4096
"""Elements of a table of one dimension, such as a schedule, that keeps its values too."""
aten = torch.ops.aten
BY_INDEX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Operations that take masks as indices."""
LAYER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(slots=True)
class Held:
    """A piece of memory, from the first operation that makes or reads it."""

    size: int
    phase: str
    module: str
    """The innermost module whose forward made it; "" for none."""
    kind: str
    """What it is as far as its birth tells; `MemoryTracker.tag` knows better."""
    elsewhere: bool
    """Whether it lies in main memory, whatever the run's device is."""


class MemoryTracker(TorchDispatchMode):
    """Notes every storage that an operation makes, grows or frees; nothing that a kernel uses inside itself is seen.

    With a `fake_mode` the tensors have no memory, and every number that is read back from one is 1. Use it inside that
    mode. Kinds of a storage: that of its tag, else "activations" for what is made in a forward pass, also a repeated
    one, "inputs" for what came from outside, and "other". `only_traffic`: nothing but collectives is noted.
    """

    def __init__(self, fake_mode: FakeTensorMode | None = None, *, only_traffic: bool = False) -> None:
        super().__init__()
        self.fake_mode, self.only_traffic = fake_mode, only_traffic
        self.held: list[Held] = []
        self.events: list[tuple[int, int, str]] = []
        """(storage, change in bytes, phase), in the order of time; (-1, 0, phase) where a phase begins."""
        self.tags: dict[int, str] = {}
        self.traffic = TrafficRecorder()
        self.operations = OperationCounter()
        self._phase = ""
        self._elsewhere = False
        self._modules: list[str] = []
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._numbers: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._working_out_shapes = Flag()
        self._undo = ExitStack()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Within the block what happens belongs to this phase."""
        before = self._phase
        self._enter_phase(name)
        try:
            yield
        finally:
            self._enter_phase(before)

    @contextmanager
    def in_main_memory(self, elsewhere: bool = True) -> Iterator[None]:
        """What is made within the block is not on the run's device; False, inside such a block: it is again."""
        before, self._elsewhere = self._elsewhere, elsewhere
        try:
            yield
        finally:
            self._elsewhere = before

    def within(self, name: str, owner: Any, method: str, *, before: Callable[[], None] = lambda: None) -> None:
        """From now on each call of `owner.method` is a phase of its own; `before` is called ahead of it."""
        function = getattr(owner, method)

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            before()
            with self.phase(name):
                return function(*args, **kwargs)

        setattr(owner, method, run)

    def name_modules(self, network: nn.Module, *, each: bool = False) -> None:
        """The names under which the modules of a network are reported; layers of a list share one unless `each`."""
        for name, module in network.named_modules():
            self._names[module] = name if each else LAYER.sub(".*", name)

    def tag(self, kind: str, tensors: Iterable[Tensor | None]) -> None:
        """Says what these tensors are, sharded ones too; also of the time before."""
        for tensor in tensors:
            if tensor is not None and tensor.device.type != "meta":
                self.tags[self._number(local_part(tensor), "inputs")] = kind

    def tag_survivors(self, kind: str, born: str) -> None:
        """Says what everything without a tag is that was made in the phase `born` and is still there."""
        for number, _ in self._numbers.values():
            if self.held[number].phase == born and number not in self.tags:
                self.tags[number] = kind

    def restart(self) -> None:
        """Forgets what was counted so far, but not what is alive: a steady step begins."""
        alive = [(number, self.held[number].size) for number, _ in self._numbers.values()]
        self.events = [(number, size, "") for number, size in alive]
        self.traffic.restart()
        self.operations = OperationCounter()
        self._enter_phase(self._phase)

    @property
    def total(self) -> int:
        """Bytes that are held now, on the device and in main memory."""
        return sum(change for _, change, _ in self.events)

    def held_now(self) -> PhaseMemory:
        """What is alive on the device at this moment."""
        return memory_after(self._changes(self.events), self._phase)

    @property
    def now(self) -> str:
        """The phase that goes on."""
        return self._phase

    @property
    def module(self) -> str:
        """The innermost module whose forward goes on; "" for none."""
        return self._modules[-1] if self._modules else ""

    def phases(self) -> list[PhaseMemory]:
        """The worst moment of each phase since the last `restart`, in the order in which they began."""
        peaks: dict[str, tuple[int, int]] = {}
        beside: dict[str, int] = defaultdict(int)
        total = elsewhere = 0
        for place, (number, change, phase) in enumerate(self.events):
            if number >= 0 and self.held[number].elsewhere:
                elsewhere += change
                beside[phase] = max(beside[phase], elsewhere)
                continue
            total += change
            if phase and total > peaks.get(phase, (-1, 0))[0]:
                peaks[phase] = total, place
        return [
            memory_after(self._changes(self.events[: place + 1]), phase, beside[phase])
            for phase, (_, place) in peaks.items()
        ]

    def stretches(self) -> Iterator[tuple[str, list[Change]]]:
        """Changes on the device of one phase that follow each other, with the kinds that the storages have now."""
        for phase, events in groupby(self.events, key=itemgetter(2)):
            if changes := list(self._changes(events)):
                yield phase, changes

    def __enter__(self) -> MemoryTracker:
        resize = torch.UntypedStorage.resize_

        @wraps(resize)
        def noted(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            self._resized(storage)
            return result

        enter = register_module_forward_pre_hook(lambda module, _: self._modules.append(self._names.get(module, "")))
        leave = register_module_forward_hook(lambda *_: self._leave_module(), always_call=True)
        self._undo.callback(enter.remove)
        self._undo.callback(leave.remove)
        self._undo.enter_context(replaced(torch.UntypedStorage, "resize_", noted))  # no operation tells of it
        self._undo.enter_context(replaced(ShardingPropagator, "_fake_mode_lock", self._working_out_shapes))
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._undo.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if DTensor in types:
            return NotImplemented  # its own operations on shards come next
        if self._working_out_shapes.on or func.namespace == "prim":
            return func(*args, **kwargs)  # of whole tensors, in the same fake mode; or a question
        given = list(tensors_among((*args, *kwargs.values())))
        if self.fake_mode is not None:
            if given and all(map(has_values, given)):
                with real_values():
                    return func(*args, **kwargs)
            if func in BY_INDEX:
                args = with_places(args)
            elif func is aten._local_scalar_dense.default:
                dtype = args[0].dtype
                return True if dtype is torch.bool else 1.0 if dtype.is_floating_point else 1
            elif func is torch.ops._c10d_functional.wait_tensor.default:
                return args[0]  # as it is in a real run
        result = func(*args, **kwargs)
        if self.only_traffic:
            self.traffic.note(func, args, kwargs, self.module)
            return result
        made = list(tensors_among((result,)))
        if not all(map(self._is_ours, made)):
            return result  # of a mode that works out shapes
        again = self._phase == "backward" and torch.is_grad_enabled()
        before = [self._number(tensor, "inputs") for tensor in given]
        kind = "activations" if again or self._phase in PASSES else "other"
        after = [self._number(tensor, kind) for tensor in made]
        if self.traffic.note(func, args, kwargs, self.module):
            for number in (*before, *after):
                self.tags.setdefault(number, COMMUNICATED)
            return result
        is_view = not func._schema.is_mutable and bool(after) and all(number in before for number in after)
        if not is_view:
            self.operations.note(func, args, kwargs, result, [*given, *made], repeated=again)
        return result

    def _is_ours(self, tensor: Tensor) -> bool:
        if self.fake_mode is None:
            return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"
        is_ours = isinstance(tensor, FakeTensor) and tensor.fake_mode is self.fake_mode
        return is_ours and tensor.fake_device.type != "meta"  # type: ignore[attr-defined]

    def _number(self, tensor: Tensor, kind: str) -> int:
        """That of the tensor's storage, which is noted when it is seen for the first time."""
        storage = tensor.untyped_storage()
        key = id(storage)
        known = self._numbers.get(key)
        if known is not None and known[1]() is storage:
            return known[0]
        number = len(self.held)
        self.held.append(Held(storage.nbytes(), self._phase, self.module, kind, self._elsewhere))
        self._numbers[key] = number, weakref.ref(storage, partial(self._freed, key, number))
        self.events.append((number, storage.nbytes(), self._phase))
        return number

    def _freed(self, key: int, number: int, _: Any) -> None:
        self.events.append((number, -self.held[number].size, self._phase))
        self.held[number].size = 0
        if key in self._numbers and self._numbers[key][0] == number:
            del self._numbers[key]

    def _resized(self, storage: torch.UntypedStorage) -> None:
        known = self._numbers.get(id(storage))
        if known is None or known[1]() is not storage:
            return
        held = self.held[known[0]]
        self.events.append((known[0], storage.nbytes() - held.size, self._phase))
        held.size = storage.nbytes()
        self.tags[known[0]] = GATHERED  # FSDP alone gives a storage its memory back

    def _enter_phase(self, name: str) -> None:
        self._phase = name
        self.events.append((-1, 0, name))

    def _leave_module(self) -> None:
        """Returns nothing: what a hook returns would replace the output of the module."""
        if self._modules:
            self._modules.pop()

    def _changes(self, events: Iterable[tuple[int, int, str]]) -> Iterator[Change]:
        """What these events change on the device."""
        for number, change, _ in events:
            if number >= 0 and not self.held[number].elsewhere:
                yield change, self.tags.get(number) or self.held[number].kind, self.held[number].module


def tensors_among(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors in a nest of lists, tuples and tables."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_among(value)
        elif isinstance(value, dict):
            yield from tensors_among(value.values())


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor keeps its values in a simulation."""
    if type(tensor) is not Tensor or tensor.device.type == "meta":
        return False
    return tensor.dtype in INDEX_TYPES or (tensor.ndim < 2 and tensor.numel() <= LONGEST_TABLE)


def with_places(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments of an operation by index, with places for masks that have values."""
    indices: list[Tensor | None] = []
    with real_values():
        for index in args[1]:
            is_mask = index is not None and index.dtype is torch.bool and has_values(index)
            indices += index.nonzero(as_tuple=True) if is_mask else [index]
    return (args[0], indices, *args[2:])


class Flag:
    """Is on within a block."""

    on = False

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *exception: Any) -> None:
        self.on = False
