"""Offloaded frozen weights: when copies start, how many layers are on the device, and on which device tensors are.

That no bit of losses and gradients changes is shown per family, on one and two ranks, in tests/distributed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plan_cases
import pytest
import torch
from qlora_runs import lora_config
from torch import Tensor, nn

from worldsmith.config import ConfigError
from worldsmith.config.sections import ParallelismConfig
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.degrees import Degrees, plan_degrees
from worldsmith.distributed.fsdp import forget_failed_forward, make_mesh, shard_network
from worldsmith.distributed.offload import HostParam, groups_of, host_params
from worldsmith.distributed.world import World, stop_world
from worldsmith.planning.plan import run_table
from worldsmith.planning.simulation.simulate import simulate
from worldsmith.training.state_bytes import state_bytes

DEPTH, WIDTH = 6, 32
LAYER = 4 * WIDTH * WIDTH
"""Bytes of the frozen weights of a layer."""
SUPPORT = Path(__file__).parents[2] / "support"


class Layer(nn.Module):
    """A frozen matrix with a trained vector."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.empty(WIDTH, WIDTH), requires_grad=False)
        self.trained = nn.Parameter(torch.empty(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if not x.isfinite().all():
            raise ArithmeticError
        return (x @ self.frozen).tanh() * self.trained


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def network() -> Iterator[Network]:
    with torch.device("meta"):
        network = Network()
    layers = list(network.layers)
    mesh = make_mesh(World(), Degrees(1, 1))
    offloaded = shard_network(network, layers, mesh=mesh, compute_dtype=torch.float32, offload=True)
    assert [parameter.shape for parameter in offloaded] == [(WIDTH, WIDTH)] * DEPTH
    network.to_empty(device="cpu")
    for parameter in network.parameters():
        nn.init.uniform_(parameter, 0.5, 1.0)
    yield network
    stop_world()


def on_device(network: Network) -> int:
    """Bytes of frozen weights that a GPU would have."""
    params = [param for group in groups_of(network) for param in host_params(group)]
    copies = sum(0 if param.copied is None else param.copied.nbytes for param in params)
    return copies + sum(t.untyped_storage().nbytes() for param in params for t in param.all_gather_outputs)


def watch(network: Network, patch: pytest.MonkeyPatch) -> tuple[list[tuple[str, int]], list[int]]:
    """What happens, with the index of the layer, and the bytes on the device each time."""
    events: list[tuple[str, int]] = []
    sizes: list[int] = []
    layers: list[Any] = list(network.layers)
    owner = {
        id(param): i for i, layer in enumerate(layers) for group in groups_of(layer) for param in group.fsdp_params
    }
    start = HostParam.copy_to_device

    def note(name: str, index: int) -> None:
        events.append((name, index))
        sizes.append(on_device(network))

    def copy(param: HostParam) -> None:
        start(param)
        note("copy", owner[id(param)])

    patch.setattr(HostParam, "copy_to_device", copy)
    for index, layer in enumerate(layers):
        layer.register_forward_hook(lambda *_, index=index: note("forward", index))
        layer.register_full_backward_hook(lambda *_, index=index: note("backward", index))
    return events, sizes


def test_a_layer_is_copied_while_the_layer_before_it_computes(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, sizes = watch(network, monkeypatch)
    network(torch.rand(3, WIDTH).requires_grad_()).sum().backward()
    assert [index for name, index in events if name == "forward"] == list(range(DEPTH))
    assert [index for name, index in events if name == "backward"] == list(reversed(range(DEPTH)))
    middle = events.index(("forward", DEPTH - 1)) + 1
    for index in range(1, DEPTH):
        assert events.index(("copy", index)) < events.index(("forward", index - 1))
    for index in range(DEPTH - 1):
        assert middle + events[middle:].index(("copy", index)) < events.index(("backward", index + 1))
    copies = [index for name, index in events if name == "copy"]
    assert copies == [*range(DEPTH), *reversed(range(DEPTH))]
    assert LAYER < max(sizes) <= 2 * LAYER
    assert on_device(network) == 0


def test_an_error_leaves_no_copy_behind(network: Network) -> None:
    with pytest.raises(ArithmeticError):
        network(torch.full((3, WIDTH), torch.nan))
    assert on_device(network) > 0
    forget_failed_forward(network)
    assert on_device(network) == 0
    network(torch.rand(3, WIDTH).requires_grad_()).sum().backward()
    assert on_device(network) == 0


CASES = [
    *(f"{family}.lora.offloaded" for family in ("cogvideox", "cosmos3", "flux", "ltx_video", "wan")),
    "wan.lora.bf16.full.average.offloaded",
    "cosmos3.lora.bf16.cp2.offloaded",
]


def test_no_operator_gets_tensors_of_two_devices_and_a_plan_knows_what_is_where(tmp_path: Path) -> None:
    """On a simulated GPU; a plan has no device of another kind, and finds the same peaks."""
    command = [sys.executable, str(SUPPORT / "two_devices.py"), *CASES]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    plan_cases.use_parts(plan_cases.write_parts(tmp_path))
    for case in CASES:
        config = plan_cases.case_config(case)
        ranks, batches = 2 if "cp2" in case else 1, plan_cases.case_batches(case, config)
        planned = simulate(config, batches, ranks=ranks, phases=("loading", "validation", "sampling", "saving"))
        for phase in planned.phases:
            device, host = found[case][phase.name]
            assert phase.main_memory == host, (case, phase.name)
            if phase.name == "loading":  # in steps, attention and AdamW of that device have no fused kernels
                assert phase.peak == pytest.approx(device, rel=1e-3), case
        states = state_bytes(run_table(config), config, plan_degrees(config.model.config.parallelism, ranks))
        assert states.offloaded == pytest.approx(found[case]["optimizer"][1], rel=0.1), case
        assert states.parameters < 0.5 * states.offloaded


def test_a_plan_has_offloaded_weights_in_host_ram_and_two_layers_on_the_gpu(tmp_path: Path) -> None:
    plan_cases.use_parts(plan_cases.write_parts(tmp_path))
    peaks = {}
    for case in (
        "cosmos3.lora.full",
        "cosmos3.lora.full.offloaded",
        "cosmos3.bits4.full",
        "cosmos3.bits4.full.offloaded",
    ):
        config = plan_cases.case_config(case)
        work = simulate(config, plan_cases.case_batches(case, config), ranks=1)
        optimizer = next(phase for phase in work.phases if phase.name == "optimizer")
        peaks[case] = optimizer.peak, optimizer.main_memory
    for case in ("cosmos3.lora.full", "cosmos3.bits4.full"):
        (device, none), (offloaded_device, host) = peaks[case], peaks[f"{case}.offloaded"]
        assert none == 0
        assert host > 2 * offloaded_device
        assert device - offloaded_device == pytest.approx(host, rel=1e-3), case


def test_a_plan_has_the_inputs_of_recomputed_layers_in_host_ram(tmp_path: Path) -> None:
    """Two layers: the input of each, in the forward and the backward pass."""
    plan_cases.use_parts(plan_cases.write_parts(tmp_path))
    peaks = {}
    for offload in (False, True):
        config = plan_cases.case_config("ltx_video.lora.full")
        config.model.config.activation_checkpointing.offload = offload
        work = simulate(config, plan_cases.case_batches("ltx_video.lora.full", config), ranks=1)
        phases = {phase.name: phase for phase in work.phases}
        peaks[offload] = phases["backward"].kinds["activations"], phases["backward"].main_memory
    assert peaks[False][1] == 0 < peaks[True][1]
    assert peaks[True][0] < peaks[False][0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"lora_enabled": False}, "(?s)parallelism.offload = .*this config freezes no weights.*use adapters"),
        ({"lora_enabled": False, "keys": ["layers.0"]}, "this config freezes no weights"),
    ],
)
def test_without_frozen_weights_it_is_refused(change: dict[str, Any], problem: str) -> None:
    config = lora_config(Path("nowhere"))
    model = config.model.config
    if not change.pop("lora_enabled"):
        config.model.config = type(model)(parallelism=ParallelismConfig(offload="frozen"))
    config.optimizer.keys_to_select = change.get("keys", [])
    with pytest.raises(ConfigError, match=problem):
        resolve(config)
