"""Offloaded frozen weights: when copies start, how many layers are on the device, and on which device tensors are.

That no bit of losses and gradients changes is shown per family, on one and two ranks, in tests/distributed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plan_cases
import pytest
import torch
from qlora_runs import lora_config
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from worldsmith.config import ConfigError
from worldsmith.config.sections import ParallelismConfig
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.degrees import Degrees, plan_degrees
from worldsmith.distributed.fsdp import forget_failed_forward, make_mesh, shard_network
from worldsmith.distributed.offload import HostParam, groups_of, host_params
from worldsmith.distributed.world import World, stop_world
from worldsmith.models.local_part import local_part
from worldsmith.models.weights.weight_table import table_of
from worldsmith.planning.plan import run_table
from worldsmith.planning.simulation.fake_world import fake_world
from worldsmith.planning.simulation.simulate import simulate
from worldsmith.training.callbacks.grad_clip import clip_gradients
from worldsmith.training.parallel import prepare_network
from worldsmith.training.state_bytes import names_in_host_ram, state_bytes

DEPTH, WIDTH = 6, 32
LAYER = 4 * WIDTH * WIDTH
"""Bytes of the frozen weights of a layer."""
TABLES = 9000
"""Bytes of noise schedules, which only a plan counts as memory of a GPU."""
SUPPORT = Path(__file__).parents[2] / "support"
PHASES = ("loading", "validation", "sampling", "saving")


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


@pytest.fixture(autouse=True)
def end_of_world() -> Iterator[None]:
    yield
    stop_world()


@pytest.fixture
def network() -> Network:
    network, offloaded = build("frozen")
    assert [parameter.shape for parameter in offloaded] == [(WIDTH, WIDTH)] * DEPTH
    return network


def build(offload: Any, *, trained: bool = False, resident: Sequence[int] = ()) -> tuple[Network, list[nn.Parameter]]:
    """A sharded network with values, and its offloaded parameters."""
    with torch.device("meta"):
        network = Network()
    for layer in network.layers:
        layer.frozen.requires_grad_(trained)
    layers = list(network.layers)
    mesh, stays = make_mesh(World(), Degrees(1, 1)), [layers[index] for index in resident]
    settings: dict[str, Any] = {"mesh": mesh, "compute_dtype": torch.bfloat16 if trained else torch.float32}
    offloaded = shard_network(network, layers, offload=offload, resident=stays, **settings)
    fill(network)
    return network, offloaded


def fill(network: Network) -> None:
    torch.manual_seed(0)
    network.to_empty(device="cpu")
    for parameter in network.parameters():
        nn.init.uniform_(parameter, 0.5, 1.0)


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


def test_layers_that_stay_on_the_device_give_copies_more_time() -> None:
    """Two of six layers are offloaded: the copy of each starts three layers before it is used."""
    network, offloaded = build("all", resident=[1, 2, 4, 5])
    assert len(offloaded) == 4
    with pytest.MonkeyPatch.context() as patch:
        events, sizes = watch(network, patch)
        network(torch.rand(3, WIDTH).requires_grad_()).sum().backward()
    middle = events.index(("forward", DEPTH - 1)) + 1
    assert events.index(("copy", 3)) < events.index(("forward", 0))
    assert middle + events[middle:].index(("copy", 0)) < events.index(("backward", 3))
    copies = [index for name, index in events if name == "copy"]
    assert copies == [0, 0, 3, 3, 3, 3, 0, 0]  # the matrix and the vector of each
    assert LAYER < max(sizes) <= 2 * (LAYER + 4 * WIDTH)
    assert on_device(network) == 0


def test_training_equals_that_with_the_offload_of_fsdp() -> None:
    """Losses, gradients and weights of three steps in bfloat16, whose gradients two backward passes add."""
    results = []
    for offload in ("all", "half", "fsdp", "none"):
        if offload == "fsdp":
            network = Network()
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
            for module in (*network.layers, network):
                module.requires_grad_()
                fully_shard(
                    module,
                    mesh=make_mesh(World(), Degrees(1, 1)),
                    mp_policy=policy,
                    offload_policy=CPUOffloadPolicy(pin_memory=False),
                )
            fill(network)
        else:
            resident = [1, 3] if offload == "half" else []
            network, _ = build("all" if resident else offload, trained=True, resident=resident)
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, fused=True)
        found: list[Any] = []
        for _ in range(3):
            for _ in range(2):
                loss = network(torch.rand(3, WIDTH).bfloat16()).square().mean()
                loss.backward()  # type: ignore[no-untyped-call]
                found.append(float(loss))
            found.append(clip_gradients(network.parameters(), 0.1).norm)
            found += [local_part(parameter.grad).clone() for parameter in network.parameters()]  # type: ignore[arg-type]
            optimizer.step()
            optimizer.zero_grad()
        results.append([*found, *(local_part(parameter.detach()) for parameter in network.parameters())])
        stop_world()
    for ours, *others in zip(*results, strict=True):
        assert all(torch.equal(torch.as_tensor(other), torch.as_tensor(ours)) for other in others)


def test_a_backward_pass_waits_for_copies_of_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP starts them without waiting if the parameters are page-locked, and the optimizer reads them next."""
    events: list[Any] = []

    def record(stream: Any) -> Any:
        events.append(SimpleNamespace(is_over=False))
        events[-1].synchronize = partial(setattr, events[-1], "is_over", True)
        return events[-1]

    network, offloaded = build("all", trained=True)
    monkeypatch.setattr(torch.cpu.Stream, "record_event", record)
    params = [param for group in groups_of(network) for param in host_params(group)]
    assert len(params) == len(offloaded) == 2 * DEPTH
    network(torch.rand(3, WIDTH).bfloat16()).sum().backward()
    assert not any(event.is_over for event in events)
    network.zero_grad()
    for param in params:
        monkeypatch.setattr(param, "pin_memory", True)
    network(torch.rand(3, WIDTH).bfloat16()).sum().backward()
    assert sum(event.is_over for event in events) == len(params)
    assert all(param.grad_offload_event is None for param in params)


@pytest.mark.parametrize("arrangement", ["offloaded.lora.half", "all", "all.half"])
@pytest.mark.parametrize("family", plan_cases.FAMILIES)
def test_sizes_know_which_weights_are_in_host_ram(family: str, arrangement: str, tmp_path: Path) -> None:
    """Except for frozen float32 weights, which are small."""
    plan_cases.use_parts(plan_cases.write_parts(tmp_path))
    config = plan_cases.case_config(f"{family}.{arrangement}").model.config
    with fake_world(0, 1) as world:
        model = config.build(device="meta")
        prepare_network(model, world)
        table = table_of(model)
        quantized = set(model.in_host_ram)
    exact = {name for name, weight in table.items() if weight.exact and not weight.trained}
    found = names_in_host_ram(table, config)
    assert found - exact == quantized - exact
    assert 0 < len(found) <= len(table) - ("half" in arrangement)


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
    "wan.lora.all",
    "wan.bf16.full.adamw8bit.all",
    "flux.bf16.full.all",
    "cosmos3.bf16.cp2.average.all",
    "cosmos3.fp16.full.twice.every_pack.average.all.half",
]
COPIED = {
    "wan.lora.twice.offloaded": "wan.lora.twice",
    "ltx_video.lora.full.inputs_offloaded": "ltx_video.lora.full",
    "cogvideox.lora.full.offloaded.inputs_offloaded": "cogvideox.lora.full",
}
"""Offloaded cases, and those without offload, which copy only their batches from host RAM to a GPU."""
QUICK = {"flux.bf16.full.all", "cogvideox.lora.full.offloaded.inputs_offloaded"}
"""Of all weights, and of frozen weights and inputs."""


def every(cases: Iterable[str]) -> list[Any]:
    return [pytest.param(case, marks=[pytest.mark.slow] * (case not in QUICK)) for case in cases]


def two_devices(*cases: str) -> dict[str, Any]:
    command = [sys.executable, str(SUPPORT / "two_devices.py"), *cases]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


@pytest.mark.parametrize("case", every(COPIED))
def test_a_plan_counts_the_copies_of_a_step(case: str, tmp_path: Path) -> None:
    """To the byte, as torch's operators copy between a simulated GPU and the CPU."""
    plain = COPIED[case]
    found = two_devices(case, plain)
    plan_cases.use_parts(plan_cases.write_parts(tmp_path))
    config = plan_cases.case_config(case)
    work = simulate(config, plan_cases.case_batches(case, config), ranks=2 if "cp2" in case else 1)
    to_device, to_host = (a - b for a, b in zip(found[case]["copies"], found[plain]["copies"], strict=True))
    assert work.activation_copy_bytes == 2 * to_host
    assert (work.to_device_bytes, work.to_host_bytes) == (to_device - to_host, 0)
    assert (work.to_device_bytes > 0, to_host > 0) == (".offloaded" in case, "inputs_offloaded" in case)


@pytest.mark.parametrize("case", every(CASES))
def test_no_operator_gets_tensors_of_two_devices_and_a_plan_knows_what_is_where(case: str, tmp_path: Path) -> None:
    """On a simulated GPU; a plan has no device of another kind, and finds the same peaks outside of forward passes.

    In these, that device has inputs in host RAM too, and no fused attention.
    """
    found = two_devices(case)[case]
    plan_cases.use_parts(plan_cases.write_parts(tmp_path))
    config = plan_cases.case_config(case)
    planned = simulate(config, plan_cases.case_batches(case, config), ranks=1 + ("cp2" in case), phases=PHASES)
    for phase in planned.phases:
        device, host = found[phase.name]
        if phase.name in ("loading", "optimizer", "average", "saving"):
            assert phase.main_memory == pytest.approx(host, rel=1e-3, abs=TABLES), phase.name
            assert phase.peak == pytest.approx(device, rel=1e-3, abs=TABLES), phase.name
    degrees = plan_degrees(config.model.config.parallelism, planned.ranks)
    states = state_bytes(run_table(config), config, degrees)
    device, host = found["optimizer"]
    assert states.offloaded == pytest.approx(host, rel=0.15)
    if ".lora" not in case:  # else small frozen weights count as weights on the GPU
        assert states.total == pytest.approx(device, rel=1e-3, abs=TABLES)
    assert states.parameters < 0.5 * states.offloaded


@pytest.mark.parametrize("case", ["cosmos3.lora.full", pytest.param("cosmos3.bits4.full", marks=pytest.mark.slow)])
def test_a_plan_has_offloaded_weights_in_host_ram_and_two_layers_on_the_gpu(case: str, tmp_path: Path) -> None:
    plan_cases.use_parts(plan_cases.write_parts(tmp_path))
    peaks = []
    for name in (case, f"{case}.offloaded"):
        config = plan_cases.case_config(name)
        work = simulate(config, plan_cases.case_batches(name, config), ranks=1)
        optimizer = next(phase for phase in work.phases if phase.name == "optimizer")
        peaks.append((optimizer.peak, optimizer.main_memory))
    (device, none), (offloaded_device, host) = peaks
    assert none == 0
    assert host > 2 * offloaded_device
    assert device - offloaded_device == pytest.approx(host, rel=1e-3)


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


def test_a_fraction_without_offload_is_refused() -> None:
    config = lora_config(Path("nowhere"))
    config.model.config.parallelism = ParallelismConfig(offload_fraction=0.5)
    with pytest.raises(ConfigError, match=r'offload_fraction = 0\.5 and offload = "none": no layer is offloaded'):
        resolve(config)
