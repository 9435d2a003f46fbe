"""Simulates runs with two kinds of memory, as with a GPU: `python two_devices.py CASE…`, see plan_cases.py.

The device "gpusim" of a Python backend has fake tensors, and every operator on tensors of two devices fails. Prints the
peaks of a case and the copies between the devices in a step, in bytes, as JSON: {case: {phase: [device, host RAM],
"copies": [to the device, to host RAM]}}. A tensor is in host RAM if its device is the CPU, which a plan has to know
otherwise, since its tensors are all on the CPU.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plan_cases
import torch
from torch.autograd.graph import save_on_cpu
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from worldsmith.planning.simulation import tracked_run
from worldsmith.planning.simulation.fake_world import fake_world
from worldsmith.planning.simulation.memory_tracker import MemoryTracker
from worldsmith.planning.simulation.simulate import simulate

NAME = "gpusim"
PHASES = ("loading", "validation", "sampling", "saving")


def register_device() -> None:
    """The streams and events of the CPU, which do nothing, and one device."""
    backend = SimpleNamespace(**{name: getattr(torch.cpu, name) for name in dir(torch.cpu) if name[:2] != "__"})
    backend.is_available = backend.is_initialized = lambda: True
    backend.device_count, backend.current_device = lambda: 1, lambda: 0
    backend.set_device = backend.manual_seed_all = lambda value: None
    backend._is_in_bad_fork = backend.is_autocast_enabled = lambda: False
    backend.get_rng_state, backend.set_rng_state = lambda *_: torch.get_rng_state(), lambda *_, **__: None
    backend.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    _setup_privateuseone_for_python_backend(NAME, backend)


@contextmanager
def world_of_device(*args: Any, **kwargs: Any) -> Iterator[Any]:
    with fake_world(*args, **kwargs) as world:
        yield replace(world, device=f"{NAME}:0")


def make_group(self: Any, params: Any, modules: Any, mesh: Any, later: Any, device: Any, *others: Any) -> None:
    """A group of FSDP, made on the CPU, since the device has no tensors outside of a fake mode."""
    original(self, params, modules, mesh, later, torch.device("cpu"), *others)
    self.device = device
    for param in self.fsdp_params:
        param.device = device


def number_by_device(self: Any, tensor: Any, kind: str) -> int:
    """The number of a storage, which is in host RAM if its device is the CPU."""
    known = len(self.storages)
    found = number(self, tensor, kind)
    if len(self.storages) > known:
        self.storages[found].in_host_ram = tensor.device.type == "cpu"
    return found


def measure_gradients(self: Any, step: Any) -> Any:
    """Frees what only reference cycles of this simulated device hold, such as inputs of the step."""
    gc.collect()
    return measure(self, step)


class Copies(TorchDispatchMode):
    """Counts the bytes of the results of operators that have an argument on the other device."""

    def __init__(self) -> None:
        super().__init__()
        self.to_device = self.to_host = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        devices = {leaf.device.type for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)} - {"meta"}
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.ndim:
                if tensor.device.type == NAME and "cpu" in devices:
                    self.to_device += tensor.nbytes
                if tensor.device.type == "cpu" and NAME in devices:
                    self.to_host += tensor.nbytes
        return result


def counted_step(run: Any) -> Any:
    with copies:
        return step(run)


original, number = FSDPParamGroup.__init__, MemoryTracker._number
step, measure = tracked_run.TrackedRun.step, tracked_run.TrackedRun.measure_gradients
if __name__ == "__main__":
    register_device()
    FSDPParamGroup.__init__ = make_group  # type: ignore[method-assign, assignment]
    MemoryTracker._number = number_by_device  # type: ignore[method-assign]
    MemoryTracker.move_to_host_ram = lambda *_: None  # type: ignore[method-assign, assignment]
    tracked_run.fake_world = world_of_device
    tracked_run.TrackedRun.measure_gradients = measure_gradients  # type: ignore[method-assign]
    tracked_run.TrackedRun.step = counted_step  # type: ignore[method-assign]
    tracked_run.saved_in_host_ram = lambda _, pin_memory: save_on_cpu(pin_memory=pin_memory)  # type: ignore[assignment]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        plan_cases.use_parts(plan_cases.write_parts(Path(folder)))
        for case in sys.argv[1:]:
            config = plan_cases.case_config(case)
            copies = Copies()
            work = simulate(
                config, plan_cases.case_batches(case, config), ranks=2 if "cp2" in case else 1, phases=PHASES
            )
            found[case] = {phase.name: [phase.peak, phase.main_memory] for phase in work.phases}
            found[case]["copies"] = [copies.to_device, copies.to_host]
    print(json.dumps(found))
