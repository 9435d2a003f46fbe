"""`MemoryTracker`: records which tensors are alive over the course of a run, real or simulated on fake tensors."""

from __future__ import annotations

import re
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
"""Memory category of the buffers that collectives read or write."""
GATHERED = "gathered"
"""Memory category of the parameters that FSDP has all-gathered."""
PASSES = ("forward", "encoding", "validation", "sampling")
INDEX_TYPES = {torch.int64, torch.int32, torch.bool}
"""Dtypes of indices and masks. Their values are kept in a simulation, because sizes of other tensors depend on them."""
LONGEST_TABLE = 4096
"""Max elements of a one-dimensional tensor, such as a noise schedule, whose values are kept in a simulation too."""
aten = torch.ops.aten
BY_INDEX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Operators that accept boolean masks as indices."""
LAYER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(slots=True)
class TrackedStorage:
    """A tensor storage, recorded when an operator first creates or reads it."""

    size: int
    """Size of the storage in bytes; 0 after it was freed."""
    phase: str
    """Phase in which the storage was first recorded."""
    module: str
    """Innermost module whose forward pass created the storage; "" outside of modules."""
    kind: str
    """Memory category inferred when the storage was created; a category set by `MemoryTracker.tag` has priority."""
    in_host_ram: bool
    """Whether the storage is counted as host RAM, whatever the run's device is."""


class MemoryTracker(TorchDispatchMode):
    """Dispatch mode that records every tensor storage which an operator creates, resizes or frees.

    Temporary memory inside a kernel is not seen. The memory category of a storage is its tag (`tag`), else
    "activations" if a forward pass or its recomputation created it, "inputs" if it was created outside of the tracker,
    else "other".

    Args:
        fake_mode: Fake tensor mode of a simulation, in which the tracker is used; `Tensor.item` of a tensor without
            values returns 1. None: tensors are real.
        only_traffic: Record collectives only, which is faster.
    """

    def __init__(self, fake_mode: FakeTensorMode | None = None, *, only_traffic: bool = False) -> None:
        super().__init__()
        self.fake_mode, self.only_traffic = fake_mode, only_traffic
        self.storages: list[TrackedStorage] = []
        self.events: list[tuple[int, int, str]] = []
        """Memory events (index into `storages`, change in bytes, phase) in order; (-1, 0, phase) begins a phase."""
        self.tags: dict[int, str] = {}
        self.traffic = TrafficRecorder()
        self.operations = OperationCounter()
        self._phase = ""
        self._in_host_ram: bool | None = None
        self._modules: list[str] = []
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._numbers: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._working_out_shapes = Flag()
        self._undo = ExitStack()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Context manager: attributes all events within the block to the phase `name`."""
        before = self._phase
        self._enter_phase(name)
        try:
            yield
        finally:
            self._enter_phase(before)

    def in_host_ram(self, enabled: bool = True) -> AbstractContextManager[None]:
        """Context manager: counts new storages as host RAM and not as memory of the run's device.

        Outside of such a block, outputs of an operator are in host RAM if one of its inputs is, except for copies to a
        device.

        Args:
            enabled: False: count them as device memory.
        """
        return replaced(self, "_in_host_ram", enabled)

    def wrap_as_phase(self, name: str, owner: Any, method: str, *, before: Callable[[], None] = lambda: None) -> None:
        """Replaces `owner.method` by a wrapper that calls `before()` and then runs the method as the phase `name`."""
        function = getattr(owner, method)

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            before()
            with self.phase(name):
                return function(*args, **kwargs)

        setattr(owner, method, run)

    def name_modules(self, network: nn.Module, *, each: bool = False) -> None:
        """Sets the names of modules in reports to their names in `network`.

        Args:
            network: Network whose modules are named.
            each: Keep the layer index. False: `layers.3.norm` is reported as `layers.*.norm`.
        """
        for name, module in network.named_modules():
            self._names[module] = name if each else LAYER.sub(".*", name)

    def tag(self, kind: str, tensors: Iterable[Tensor | None]) -> None:
        """Assigns the category `kind` to tensors (and DTensors), including past events; skips None and meta tensors."""
        for tensor in tensors:
            if tensor is not None and tensor.device.type != "meta":
                self.tags[self._number(local_part(tensor), "inputs")] = kind

    def move_to_host_ram(self, tensors: Iterable[Tensor]) -> None:
        """Counts the storages of tensors (and DTensors) as host RAM, including past events."""
        for tensor in tensors:
            self.storages[self._number(local_part(tensor), "inputs")].in_host_ram = True

    def tag_survivors(self, kind: str, created_in: str) -> None:
        """Assigns the category `kind` to untagged storages created in the phase `created_in` that still exist."""
        for number, _ in self._numbers.values():
            if self.storages[number].phase == created_in and number not in self.tags:
                self.tags[number] = kind

    def restart(self) -> None:
        """Resets events, traffic and operator counts, but keeps living storages. Call it before the step to measure."""
        alive = [(number, self.storages[number].size) for number, _ in self._numbers.values()]
        self.events = [(number, size, "") for number, size in alive]
        self.traffic.restart()
        self.operations = OperationCounter()
        self._enter_phase(self._phase)

    @property
    def total(self) -> int:
        """Bytes that are allocated now, on the device and in host RAM."""
        return sum(change for _, change, _ in self.events)

    def peaks_since(self, index: int) -> tuple[int, int]:
        """Returns the max bytes on the device and in host RAM since event `index`, in addition to those before it."""
        now, peaks = [0, 0], [0, 0]
        for number, change, _ in self.events[index:]:
            place = int(number >= 0 and self.storages[number].in_host_ram)
            now[place] += change
            peaks[place] = max(peaks[place], now[place])
        return peaks[0], peaks[1]

    def held_now(self) -> PhaseMemory:
        """Returns the breakdown of the device memory that is allocated now, by memory category and by module."""
        return memory_after(self._changes(self.events), self._phase)

    @property
    def now(self) -> str:
        """Name of the current phase."""
        return self._phase

    @property
    def module(self) -> str:
        """Name of the innermost module whose forward pass is running; "" outside of modules."""
        return self._modules[-1] if self._modules else ""

    def phases(self) -> list[PhaseMemory]:
        """Returns the peak device memory of each phase since the last `restart`, in the order in which phases began."""
        peaks: dict[str, tuple[int, int]] = {}
        host_peaks: dict[str, int] = defaultdict(int)
        total = in_host = 0
        for index, (number, change, phase) in enumerate(self.events):
            is_host = number >= 0 and self.storages[number].in_host_ram
            in_host += change * is_host
            host_peaks[phase] = max(host_peaks[phase], in_host)
            if is_host:
                continue
            total += change
            if phase and total > peaks.get(phase, (-1, 0))[0]:
                peaks[phase] = total, index
        return [
            memory_after(self._changes(self.events[: index + 1]), phase, host_peaks[phase])
            for phase, (_, index) in peaks.items()
        ]

    def stretches(self) -> Iterator[tuple[str, list[Change]]]:
        """Yields (phase, list of changes) for each sequence of consecutive events in the same phase.

        A change is (bytes added on the device, memory category, module that created the storage).
        """
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
        self._undo.enter_context(replaced(torch.UntypedStorage, "resize_", noted))  # not dispatched as an operator
        self._undo.enter_context(replaced(ShardingPropagator, "_fake_mode_lock", self._working_out_shapes))
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._undo.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if DTensor in types:
            return NotImplemented  # DTensor dispatches operators on its local shards next
        if self._working_out_shapes.on or func.namespace == "prim":
            return func(*args, **kwargs)  # shape propagation on full tensors, or a metadata query
        inputs = list(tensors_among((*args, *kwargs.values())))
        if self.fake_mode is not None:
            if inputs and all(map(has_values, inputs)):
                with real_values():
                    return func(*args, **kwargs)
            if func in BY_INDEX:
                args = masks_to_indices(args)
            elif func is aten._local_scalar_dense.default:
                dtype = args[0].dtype
                return True if dtype is torch.bool else 1.0 if dtype.is_floating_point else 1
            elif func is torch.ops._c10d_functional.wait_tensor.default:
                return args[0]  # a real run returns the same tensor
        result = func(*args, **kwargs)
        if self.only_traffic:
            self.traffic.note(func, args, kwargs, self.module)
            return result
        outputs = list(tensors_among((result,)))
        if not all(map(self._is_ours, outputs)):
            return result  # tensors of another fake mode, which only infers shapes
        recomputed = self._phase == "backward" and torch.is_grad_enabled()
        before = [self._number(tensor, "inputs") for tensor in inputs]
        kind = "activations" if recomputed or self._phase in PASSES else "other"
        is_moved = func is aten._to_copy.default and kwargs.get("device") is not None
        is_host = not is_moved and any(self.storages[number].in_host_ram for number in before)
        with self.in_host_ram(is_host if self._in_host_ram is None else self._in_host_ram):
            after = [self._number(tensor, kind) for tensor in outputs]
        if self.traffic.note(func, args, kwargs, self.module):
            for number in (*before, *after):
                self.tags.setdefault(number, COMMUNICATED)
            return result
        is_view = not func._schema.is_mutable and bool(after) and all(number in before for number in after)
        if not is_view and not self._record_copy(outputs, before, after):
            self.operations.record(func, args, kwargs, result, [*inputs, *outputs], recomputed=recomputed)
        return result

    def _record_copy(self, outputs: Sequence[Tensor], before: Sequence[int], after: Sequence[int]) -> bool:
        """Counts the bytes of a copy between host RAM and the device; returns whether the operator is such a copy.

        Args:
            outputs: Tensors that the operator returned.
            before: Indices of the storages of its arguments.
            after: Indices of the storages of `outputs`.
        """
        to_host = {self.storages[number].in_host_ram for number in after}
        sources = [number for number in before if {not self.storages[number].in_host_ram} == to_host]
        if not sources:
            return False
        size, counts = sum(tensor.nbytes for tensor in outputs), self.operations
        in_host_ram = after if True in to_host else sources
        if all(self.storages[number].kind == "activations" for number in in_host_ram):
            counts.activation_copy_bytes += size
        elif False in to_host:
            counts.to_device_bytes += size
        else:
            counts.to_host_bytes += size
        return True

    def _is_ours(self, tensor: Tensor) -> bool:
        if self.fake_mode is None:
            return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"
        is_ours = isinstance(tensor, FakeTensor) and tensor.fake_mode is self.fake_mode
        return is_ours and tensor.fake_device.type != "meta"  # type: ignore[attr-defined]

    def _number(self, tensor: Tensor, kind: str) -> int:
        """Returns the index of the tensor's storage in `storages`; a new storage is added with the category `kind`."""
        storage = tensor.untyped_storage()
        key = id(storage)
        known = self._numbers.get(key)
        if known is not None and known[1]() is storage:
            return known[0]
        number = len(self.storages)
        self.storages.append(TrackedStorage(storage.nbytes(), self._phase, self.module, kind, bool(self._in_host_ram)))
        self._numbers[key] = number, weakref.ref(storage, partial(self._freed, key, number))
        self.events.append((number, storage.nbytes(), self._phase))
        return number

    def _freed(self, key: int, number: int, _: Any) -> None:
        self.events.append((number, -self.storages[number].size, self._phase))
        self.storages[number].size = 0
        if key in self._numbers and self._numbers[key][0] == number:
            del self._numbers[key]

    def _resized(self, storage: torch.UntypedStorage) -> None:
        known = self._numbers.get(id(storage))
        if known is None or known[1]() is not storage:
            return
        storage_info = self.storages[known[0]]
        self.events.append((known[0], storage.nbytes() - storage_info.size, self._phase))
        storage_info.size = storage.nbytes()
        self.tags[known[0]] = GATHERED  # only FSDP reallocates a freed storage

    def _enter_phase(self, name: str) -> None:
        self._phase = name
        self.events.append((-1, 0, name))

    def _leave_module(self) -> None:
        """Pops the innermost module; returns None, since another value would replace the output of the module."""
        if self._modules:
            self._modules.pop()

    def _changes(self, events: Iterable[tuple[int, int, str]]) -> Iterator[Change]:
        """Converts memory events to changes: (bytes added on the device, memory category, module).

        An event is (index into `storages`, change in bytes, phase). Host RAM and starts of phases are skipped.
        """
        for number, change, _ in events:
            if number >= 0 and not self.storages[number].in_host_ram:
                yield change, self.tags.get(number) or self.storages[number].kind, self.storages[number].module


def tensors_among(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yields the tensors in nested lists, tuples and dicts."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_among(value)
        elif isinstance(value, dict):
            yield from tensors_among(value.values())


def has_values(tensor: Tensor) -> bool:
    """Returns whether a simulation keeps the values of a tensor: integer and bool tensors, and small 1-D tensors."""
    if type(tensor) is not Tensor or tensor.device.type == "meta":
        return False
    return tensor.dtype in INDEX_TYPES or (tensor.ndim < 2 and tensor.numel() <= LONGEST_TABLE)


def masks_to_indices(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the arguments of an indexing operator with boolean masks replaced by their integer indices."""
    indices: list[Tensor | None] = []
    with real_values():
        for index in args[1]:
            is_mask = index is not None and index.dtype is torch.bool and has_values(index)
            indices += index.nonzero(as_tuple=True) if is_mask else [index]
    return (args[0], indices, *args[2:])


class Flag:
    """Context manager whose attribute `on` is True within the block."""

    on = False

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *exception: Any) -> None:
        self.on = False
