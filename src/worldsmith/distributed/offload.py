"""Offload of parameters: they stay in host RAM, and FSDP copies those of a unit to the device while it is used.

`CPUOffloadPolicy` of FSDP2 is not used, because it offloads all parameters of a unit, adapters and their optimizer
state included, and because on one rank it copies parameters on the stream of the computation, so nothing overlaps.
Here the same unit of FSDP can have parameters in host RAM and on the device, and one rank copies on FSDP's copy-in
stream. Gradients of offloaded parameters are moved to host RAM by FSDP's own code, as with `CPUOffloadPolicy`: each one
on the stream of its reduction, and at the end of the backward pass the process waits for all of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol, cast

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from worldsmith.distributed.memory import pin, unpin


class HostLayer(Protocol):
    """Layer whose quantized weight stays in host RAM, see `models.converters.quantized_layer`."""

    in_host_ram: bool

    def copy_to_device(self) -> None: ...

    def drop_copies(self) -> None: ...


class HostParam(FSDPParam):
    """Parameter of FSDP whose shard is in host RAM; the all-gather uses a copy of the shard on the device."""

    copied: Tensor | None = None
    """Copy of the shard on the device; None before `copy_to_device` and after the all-gather."""

    def copy_to_device(self) -> None:
        """Starts the copy of the shard to the device on the current stream."""
        self.copied = self._sharded_param_data.to(self.device, non_blocking=True, copy=True)

    @property
    def all_gather_inputs(self) -> list[Tensor]:
        if self.copied is None:
            self.copy_to_device()
        copied, self.copied = cast("Tensor", self.copied), None
        return [copied.to(self.param_dtype or copied.dtype)]


class StreamedGroup(FSDPParamGroup):
    """Parameters of an FSDP unit with a `HostParam` or a quantized layer in host RAM.

    Over several ranks, FSDP copies parameters on its copy-in stream before the all-gather. One rank has no all-gather,
    so the copies are started here, as are those of quantized layers.
    """

    quantized: Sequence[HostLayer] = ()
    """Layers of the unit whose quantized weights are in host RAM."""
    copies_end: Any = None
    """Event at the end of the copies that were started last; None once the computation waits for it."""

    def unshard(self, async_op: bool = False) -> None:
        was_pending = self._all_gather_result is not None
        super().unshard(async_op)
        if was_pending or self._all_gather_result is None:
            return
        params = host_params(self) if self._all_gather_process_group.size() == 1 else []
        stream = self.comm_ctx.all_gather_copy_in_stream
        stream.wait_stream(self.device_handle.current_stream())  # which may still use the memory of earlier copies
        with self.device_handle.stream(stream):
            for param in params:
                param.copy_to_device()
            for layer in self.quantized:
                layer.copy_to_device()
            self.copies_end = stream.record_event()

    def wait_for_unshard(self) -> None:
        if self.copies_end is not None:
            self.device_handle.current_stream().wait_event(self.copies_end)
            self.copies_end = None
        super().wait_for_unshard()

    def _to_sharded(self) -> None:
        super()._to_sharded()
        for layer in self.quantized:
            layer.drop_copies()

    def finalize_backward(self) -> None:
        super().finalize_backward()
        self._drop_unused_copies()

    def _reset_iter_state(self) -> None:
        super()._reset_iter_state()
        self._drop_unused_copies()

    def _drop_unused_copies(self) -> None:
        """Frees copies that no pass has used, such as after an exception."""
        if self.copies_end is not None:
            self.device_handle.current_stream().wait_event(self.copies_end)
            self.copies_end = None
        for param in host_params(self):
            param.copied = None
        if not self.is_unsharded:
            for layer in self.quantized:
                layer.drop_copies()


def groups_of(network: nn.Module) -> Iterator[FSDPParamGroup]:
    """Yields the parameter groups of all FSDP units of a network."""
    for module in network.modules():
        if isinstance(module, FSDPModule):
            yield from module._get_fsdp_state()._fsdp_param_groups


def host_params(group: FSDPParamGroup) -> list[HostParam]:
    """Returns the offloaded parameters of a group."""
    return [param for param in group.fsdp_params if isinstance(param, HostParam)]


def offload(
    network: nn.Module,
    units: Collection[nn.Module],
    quantized: Collection[Any] = (),
    *,
    trained: bool = False,
    resident: Collection[nn.Module] = (),
) -> list[nn.Parameter]:
    """Offloads sharded parameters and the quantized weights of a network, and prefetches layers, in place.

    The network is sharded and on the meta device. The caller allocates the returned parameters in host RAM.

    Args:
        network: Root module of FSDP.
        units: Modules that are separate FSDP units; those in an `nn.ModuleList` prefetch the next one of the list.
        quantized: Quantized layers (`HostLayer`) of the network.
        trained: Whether trained parameters are offloaded too, and not only frozen ones.
        resident: Layers whose parameters and quantized weights stay on the device.
    """
    found, stays = [], {module for layer in resident for module in layer.modules()}
    for group in groups_of(network):
        unit = group.modules[0]
        if unit in stays:
            continue
        offloaded = [param for param in group.fsdp_params if trained or not param.sharded_param.requires_grad]
        for param in offloaded:
            param.__class__, param.offload_to_cpu = HostParam, True
        held: list[Any] = [module for module in unit.modules() if module in quantized] if unit in units else []
        for layer in held:
            layer.in_host_ram = True
        if offloaded or held:
            group.__class__ = StreamedGroup
            cast("StreamedGroup", group).quantized = held
        found += [param.sharded_param for param in offloaded]
    for module in network.modules():
        if isinstance(module, nn.ModuleList):
            layers: list[Any] = [unit for unit in module if unit in units]
            for layer, targets in prefetch_targets(layers, resident):
                layer.set_modules_to_forward_prefetch(targets)
            for layer, targets in prefetch_targets(layers[::-1], resident):
                layer.set_modules_to_backward_prefetch(targets)
    return found


def prefetch_targets(layers: Sequence[Any], resident: Collection[nn.Module]) -> Iterator[tuple[Any, list[FSDPModule]]]:
    """Yields each layer except the last one with the FSDP units to prefetch when it begins.

    These are the units of the next layer. An offloaded layer also prefetches the next offloaded one, so that the copy
    has the time of all resident layers between them.

    Args:
        layers: Layers in the order in which they are used.
        resident: Layers that are not offloaded.
    """
    for index, layer in enumerate(layers[:-1], start=1):
        further = [] if layer in resident else [other for other in layers[index:] if other not in resident][:1]
        targets = dict.fromkeys([layers[index], *further])
        yield layer, [unit for target in targets for unit in target.modules() if isinstance(unit, FSDPModule)]


def pin_offloaded(network: nn.Module) -> None:
    """Page-locks the offloaded parameters of a network until it is freed, so that their copies overlap with kernels.

    PyTorch's allocator of page-locked memory is not used for them, because it rounds sizes up to powers of two. FSDP
    uses it for the gradients of parameters that could be page-locked, see `memory.pinned_bytes`.
    """
    pinned = []
    for param in (param for group in groups_of(network) for param in host_params(group)):
        param.pin_memory = pin(param._sharded_param_data)
        pinned += [param._sharded_param_data] * param.pin_memory
    weakref.finalize(network, unpin_all, pinned).atexit = False


def unpin_all(buffers: Sequence[Tensor]) -> None:
    for buffer in buffers:
        unpin(buffer)
