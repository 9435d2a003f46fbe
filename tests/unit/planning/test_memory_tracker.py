"""What is alive, when, and what it is: known by hand for a small network, with and without memory."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from worldsmith.models.local_part import local_part
from worldsmith.planning.simulation.fake_world import fake_tensor_mode
from worldsmith.planning.simulation.memory_tracker import MemoryTracker
from worldsmith.planning.simulation.phase_peaks import Timeline, deeper_peaks

ROWS, WIDTH = 8, 16
ACTIVATION, WEIGHT = 4 * ROWS * WIDTH, 4 * WIDTH * WIDTH


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x))


class Blocks(nn.Module):
    def __init__(self, count: int, *, again: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x


def tracked(*, fake: bool, again: bool) -> MemoryTracker:
    mode = fake_tensor_mode() if fake else None
    tracker = MemoryTracker(mode)
    with mode or contextlib.nullcontext(), tracker:
        network = Blocks(3, again=again)
        tracker.name_modules(network)
        tracker.tag("parameters", network.parameters())
        x = torch.zeros(ROWS, WIDTH)
        tracker.tag("inputs", [x])
        with tracker.phase("forward"):
            loss = network(x).sum()
        with tracker.phase("backward"):
            loss.backward()
        tracker.tag("gradients", [parameter.grad for parameter in network.parameters()])
    return tracker


@pytest.mark.parametrize("again", [False, True])
def test_without_memory_the_same_is_found_as_with(again: bool) -> None:
    real, fake = tracked(fake=False, again=again), tracked(fake=True, again=again)
    assert real.phases() == fake.phases()
    assert real.operations == fake.operations


def test_a_forward_pass_keeps_its_activations() -> None:
    forward, backward = tracked(fake=True, again=False).phases()
    # The output of each relu is kept; the input of the last one is there beside its output, and freed.
    assert dict(forward.kinds) == {"parameters": 3 * WEIGHT, "activations": 4 * ACTIVATION, "inputs": ACTIVATION}
    assert dict(forward.modules) == {"blocks.*": 3 * ACTIVATION, "blocks.*.inner": ACTIVATION}
    assert backward.kinds["parameters"] == 3 * WEIGHT


def test_recomputation_keeps_the_inputs_of_the_blocks_and_is_counted() -> None:
    plain, again = tracked(fake=True, again=False), tracked(fake=True, again=True)
    forward = again.phases()[0]
    assert forward.kinds["activations"] == 4 * ACTIVATION  # two inputs of blocks, and within the last block two more
    product = 2 * ROWS * WIDTH * WIDTH
    assert plain.operations.flops == product * (3 + 3 + 2)  # forward, weights, inputs of all but the first
    assert again.operations.flops - plain.operations.flops == again.operations.recomputed_flops == 3 * product


def test_gradients_stay_when_the_graph_is_gone() -> None:
    tracker = tracked(fake=True, again=False)
    backward = tracker.phases()[1]
    assert backward.kinds["gradients"] >= WEIGHT
    assert 0 < backward.peak <= 6 * WEIGHT + 6 * ACTIVATION


def test_main_memory_is_no_part_of_the_device() -> None:
    tracker = MemoryTracker()
    with tracker, tracker.phase("loading"), tracker.in_host_ram():
        value = torch.zeros(ROWS, WIDTH)
        with tracker.in_host_ram(False):
            copy = value + 1
        kept = torch.cat([value, copy])
    (loading,) = tracker.phases()
    assert (loading.peak, loading.main_memory) == (ACTIVATION, 3 * ACTIVATION)
    assert len(kept) == 2 * ROWS


def steps_of(depth: int) -> MemoryTracker:
    """Keeps 100 elements a layer up to its backward pass, which makes 50; after all layers 600 are made."""
    with MemoryTracker() as tracker:
        for _ in range(2):
            with tracker.phase("forward"):
                kept, made = [torch.zeros(100) for _ in range(depth)], []
            with tracker.phase("backward"):
                while kept:
                    made.append(torch.zeros(50))
                    kept.pop()
                made.append(torch.zeros(600))
            del made
    return tracker


@pytest.mark.parametrize("depth", [5, 11, 13, 40])
def test_the_peak_of_many_layers_may_be_at_another_moment_than_that_of_few(depth: int) -> None:
    few, more, exact = steps_of(3), steps_of(4), {phase.name: phase for phase in steps_of(depth).phases()}
    few_peaks = {phase.name: phase.peak for phase in few.phases()}
    assert few_peaks["backward"] == 4 * (3 * 50 + 600)  # at its end, while with 13 layers it is at its beginning
    found = deeper_peaks(Timeline(few.stretches()), {Timeline(more.stretches()): depth - 3})
    assert {name: phase.peak for name, phase in found.items()} == {name: phase.peak for name, phase in exact.items()}
    assert found["backward"].kinds == exact["backward"].kinds


class RefusedOperations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} is an operation")


def test_the_local_shard_of_a_parameter_is_found_by_no_operation() -> None:
    """A plan would note an operation as one of the run's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parameter = nn.Parameter(distribute_tensor(torch.ones(3), init_device_mesh("cpu", (1,))))
        with RefusedOperations():
            shard = local_part(parameter)
        assert shard.data_ptr() == parameter.to_local().data_ptr()
        assert not isinstance(shard, type(parameter.data))
        assert local_part(shard) is shard
    finally:
        dist.destroy_process_group()
