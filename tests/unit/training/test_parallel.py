"""Compiling parts of a network: names stay, and what cannot be compiled says so instead of running slowly."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.fsdp import FSDPModule

from worldsmith.config.errors import UserError, WrongValueError
from worldsmith.config.sections import ActivationCheckpointingConfig, CompileConfig, ParallelismConfig
from worldsmith.distributed.world import World
from worldsmith.families.wan.architecture import tiny
from worldsmith.families.wan.model import WanGenerator
from worldsmith.models.local_part import local_part
from worldsmith.training.parallel import compile_methods, prepare_network


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def run(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return self.linear(x)


@pytest.mark.parametrize("dynamic", [True, False])
def test_what_cannot_be_compiled_is_an_error_with_a_way_out(dynamic: bool) -> None:
    block = Broken()
    compile_methods([block], ["run"], CompileConfig(enabled=True, compile_dynamic=dynamic))
    assert list(block.state_dict()) == ["linear.weight", "linear.bias"]
    way_out = "set enabled = false" if dynamic else "set compile_dynamic = true .* or enabled = false"
    with pytest.raises(UserError, match=rf"model\.config\.compile: Broken\.run could not be compiled; {way_out}"):
        block.run(torch.ones(1, 2))


def test_an_error_of_the_code_itself_stays_what_it_is() -> None:
    block = Broken()
    compile_methods([block], ["run"], CompileConfig(enabled=False))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        block.run(torch.ones(1, 3))


def test_values_inside_compiled_layers_are_not_compared() -> None:
    recompute = ActivationCheckpointingConfig(mode="full", determinism_check="match")
    config = WanGenerator.Config(
        network=tiny(), compile=CompileConfig(enabled=True), activation_checkpointing=recompute
    )
    with pytest.raises(WrongValueError, match="values inside compiled layers cannot be compared"):
        config.check()


def test_matmuls_inside_blocks_that_are_compiled_in_pieces_are_not_kept() -> None:
    config = WanGenerator.Config(network=tiny(), compile=CompileConfig(enabled=True))
    config.activation_checkpointing = ActivationCheckpointingConfig(mode="selective", save_every_second_matmul=True)
    with pytest.raises(WrongValueError, match="compiled in pieces, inside which no matmul can be saved"):
        config.check()
    config.lora_enabled = True
    config.check()


QUICK = {("selective", False, False)}
"""Trained norms break the graph; whole layers, as of adapters, take half a minute to compile."""


@pytest.mark.parametrize(
    ("mode", "lora", "frames"),
    [
        pytest.param(
            *(mode, lora, frames),
            id=f"{mode}-{lora}-timestep{' per frame' * frames}",
            marks=[pytest.mark.slow] * ((mode, lora, frames) not in QUICK),
        )
        for mode, lora, frames in product(("none", "full", "selective"), (False, True), (False, True))
    ],
)
def test_a_bfloat16_wan_with_float32_norms_compiles(
    lora: bool, mode: str, frames: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output and gradients are those of eager layers. Frozen norms are no FSDP units; trained ones break the graph."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *args, **words: compile_(*args, backend="aot_eager", **words))
    results = []
    for enabled in (False, True):
        config = WanGenerator.Config(
            network=tiny(),
            precision="bfloat16",
            expand_timesteps=frames,
            lora_enabled=lora,
            compile=CompileConfig(enabled=enabled),
            activation_checkpointing=ActivationCheckpointingConfig(mode=mode),
            parallelism=ParallelismConfig(fsdp_master_dtype="bfloat16" if lora else "float32"),
        )
        model = WanGenerator(config, device="meta")
        prepare_network(model, World())
        model.materialize("cpu")
        torch.manual_seed(0)
        for parameter in model.network.parameters():
            local_part(parameter.detach()).normal_(0, 0.1)
        noisy, text = torch.randn(1, 4, 3, 8, 8), torch.randn(1, 16, 32)
        output = model.predict(noisy, torch.tensor([500.0]), text, given=[1]).float()
        output.square().mean().backward()
        gradients = [local_part(p.grad).flatten() for p in model.network.parameters() if p.grad is not None]
        results.append((output.detach(), torch.cat(gradients).float()))
        norms = [block.norm2 for block in model.network.blocks]
        assert all(isinstance(norm, FSDPModule) != lora for norm in norms)
    for expected, found in zip(*results):
        assert expected.norm() > 0
        assert (found - expected).norm() <= 2e-2 * expected.norm()


@pytest.mark.parametrize(
    "frames", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["timestep", "timestep per frame"]
)
def test_clips_of_all_lengths_share_one_graph(frames: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_, graphs = torch.compile, CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", lambda *args, **words: compile_(*args, backend=graphs, **words))
    torch._dynamo.reset()
    compiled = CompileConfig(enabled=True)
    config = WanGenerator.Config(network=tiny(), precision="float32", expand_timesteps=frames, compile=compiled)
    model = WanGenerator(config, seed=0)
    prepare_network(model, World())
    counts = []
    for shape in ((5, 8, 14), (9, 12, 10), (11, 20, 26)):  # sides of equal length would be one symbol
        noisy, text = torch.randn(3, 4, *shape), torch.randn(3, 16, 32)
        model.predict(noisy, torch.tensor([500.0, 900.0, 20.0]), text, given=[1, 0, 1]).sum().backward()
        counts.append(graphs.frame_count)
    assert counts == [counts[0]] * 3
