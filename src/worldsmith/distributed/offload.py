"""Offload of frozen parameters: they stay in host RAM, and FSDP copies those of a unit to the device while it is used.

`CPUOffloadPolicy` of FSDP2 is not used, because it offloads all parameters of a unit, adapters and their optimizer
state included, and because on one rank it copies parameters on the stream of the computation, so nothing overlaps.
Here the same unit of FSDP has parameters in host RAM and on the device, and one rank copies on FSDP's copy-in stream.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, cast

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from worldsmith.distributed.memory import pin, unpin

if TYPE_CHECKING:
    from torch import Tensor


class HostLayer(Protocol):
    """Layer whose quantized weight stays in host RAM, see `models.converters.quantized_layer`."""

    in_host_ram: bool

    def copy_to_device(self) -> None: ...

    def drop_copies(self) -> None: ...


class HostParam(FSDPParam):
    """Frozen parameter of FSDP whose shard is in host RAM; the all-gather uses a copy of the shard on the device."""

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
    return [param for param in group.fsdp_params if isinstance(param, HostParam)]


def offload_frozen(
    network: nn.Module, units: Collection[nn.Module], quantized: Collection[Any] = ()
) -> list[nn.Parameter]:
    """Offloads the frozen sharded parameters and the quantized weights of a network, and prefetches layers, in place.

    The network is sharded and on the meta device. The caller allocates the returned parameters in host RAM.

    Args:
        network: Root module of FSDP.
        units: Modules that are separate FSDP units; those in an `nn.ModuleList` prefetch the next one of the list.
        quantized: Quantized layers (`HostLayer`) of the network.
    """
    found = []
    for group in groups_of(network):
        frozen = [param for param in group.fsdp_params if not param.sharded_param.requires_grad]
        for param in frozen:
            param.__class__, param.offload_to_cpu = HostParam, True
        unit = group.modules[0]
        held: list[Any] = [module for module in unit.modules() if module in quantized] if unit in units else []
        for layer in held:
            layer.in_host_ram = True
        if frozen or held:
            group.__class__ = StreamedGroup
            cast("StreamedGroup", group).quantized = held
        found += [param.sharded_param for param in frozen]
    for module in network.modules():
        if isinstance(module, nn.ModuleList):
            for unit, following in pairwise(module):
                if unit in units and following in units:
                    unit.set_modules_to_forward_prefetch([following])  # type: ignore[operator]
    return found


def pin_offloaded(network: nn.Module) -> None:
    """Page-locks the offloaded parameters of a network until it is freed, so that their copies overlap with kernels.

    PyTorch's allocator of page-locked memory is not used, because it rounds sizes up to powers of two.
    """
    params = [param for group in groups_of(network) for param in host_params(group)]
    pinned = [param._sharded_param_data for param in params if pin(param._sharded_param_data)]
    weakref.finalize(network, unpin_all, pinned).atexit = False


def unpin_all(buffers: Sequence[Tensor]) -> None:
    for buffer in buffers:
        unpin(buffer)
