"""Simulates runs with two kinds of memory, as with a GPU: `python two_devices.py CASE…`, see plan_cases.py.

The device "gpusim" of a Python backend has fake tensors, and every operator on tensors of two devices fails. Prints the
peaks of a case in bytes as JSON: {case: {phase: [device, host RAM]}}.
"""

from __future__ import annotations

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
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from worldsmith.planning.simulation import tracked_run
from worldsmith.planning.simulation.fake_world import fake_world
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


original = FSDPParamGroup.__init__
if __name__ == "__main__":
    register_device()
    FSDPParamGroup.__init__ = make_group  # type: ignore[method-assign, assignment]
    tracked_run.fake_world = world_of_device
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        plan_cases.use_parts(plan_cases.write_parts(Path(folder)))
        for case in sys.argv[1:]:
            config = plan_cases.case_config(case)
            work = simulate(
                config, plan_cases.case_batches(case, config), ranks=2 if "cp2" in case else 1, phases=PHASES
            )
            found[case] = {phase.name: [phase.peak, phase.main_memory] for phase in work.phases}
    print(json.dumps(found))
