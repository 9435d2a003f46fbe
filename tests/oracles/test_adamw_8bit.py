"""AdamW8bit against torchao's optimizer of that name, and its state against AdamW's of float32."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
import torch
from torch import nn
from torchao.optim import AdamW8bit as Judge
from torchao.optim.quant_utils import create_dynamic_map, dequant_with_qmap

from worldsmith.distributed.adamw_8bit import AdamW8bit, levels
from worldsmith.distributed.state_blocks import block_size
from worldsmith.training.optimizer import LossScaler
from worldsmith.training.trainer import Trainer

SETTINGS: dict[str, Any] = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def network(width: int, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 64), nn.Linear(width, 16), nn.LayerNorm(8)).to(dtype)


def gradient(parameter: nn.Parameter, seed: int) -> torch.Tensor:
    """Of different sizes within a block."""
    normal = torch.randn(2, *parameter.shape, generator=torch.Generator().manual_seed(seed))
    return (normal[0] * normal[1].exp()).to(parameter.dtype)


@pytest.mark.parametrize("signed", [True, False])
def test_the_levels_are_those_of_the_library(signed: bool) -> None:
    assert torch.equal(levels(signed=signed), torch.tensor(create_dynamic_map(signed=signed)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "block"), [(512, 256), (192, 192), (320, 160)])
def test_twenty_steps_are_those_of_the_library(width: int, block: int, dtype: torch.dtype) -> None:
    """Two learning rates that change, small parameters, a parameter without gradients; to the bit in float32.

    A value in the middle of two levels may be rounded to the other one; in bfloat16 there are more of them.
    """
    ours, theirs = network(width, dtype), network(width, dtype)
    makes = [(ours, AdamW8bit, {}), (theirs, Judge, {"block_size": block})]
    optimizers = [
        make([{"params": net[0].parameters()}, {"params": [*net[1].parameters(), *net[2].parameters()], "lr": 1e-2}],
             lr=1e-3, **SETTINGS, **more)
        for net, make, more in makes
    ]  # fmt: skip
    assert block_size((64, width)) == block
    for step in range(20):
        for net, optimizer in zip((ours, theirs), optimizers):
            for number, parameter in enumerate([*net[0].parameters(), *net[1].parameters(), net[2].weight]):
                parameter.grad = gradient(parameter, 100 * step + number)
            for group, rate in zip(optimizer.param_groups, (1e-3, 1e-2)):
                rate *= 1 - step / 40
                group["lr"] = torch.tensor(rate) if isinstance(group["lr"], torch.Tensor) else rate
            with torch.compiler.set_stance("force_eager"):
                optimizer.step()
    assert ours[2].bias not in optimizers[0].state
    exact = dtype is torch.float32
    for mine, other in zip(ours.parameters(), theirs.parameters()):
        assert (mine != other).float().mean() <= (0 if exact else 0.05)
        state, judge = (optimizer.state.get(p, {}) for optimizer, p in zip(optimizers, (mine, other)))
        for name in ("exp_avg", "exp_avg_sq") if judge else ():
            if not hasattr(judge[name], "codes"):
                assert torch.equal(state[name], judge[name])
                continue
            assert (state[name] != judge[name].codes).float().mean() <= (0 if exact else 0.05)
            torch.testing.assert_close(
                state[f"{name}_scale"].flatten(), judge[name].scale, rtol=0, atol=0 if exact else 1
            )
    assert state_kinds(optimizers[0]) == state_kinds(optimizers[1]) == [True, False, 16 * width >= 4096, False, False]


def state_kinds(optimizer: torch.optim.Optimizer) -> list[bool]:
    """Whether the state of each parameter is in 8 bits."""
    states = [state["exp_avg"] for state in optimizer.state.values()]
    return [state.dtype is torch.uint8 or hasattr(state, "codes") for state in states]


def test_what_is_stored_is_close_to_the_averages_of_adamw() -> None:
    """To 5 % of the norm after 20 steps."""
    ours, theirs = network(512, torch.float32), network(512, torch.float32)
    makes = (ours, AdamW8bit), (theirs, torch.optim.AdamW)
    optimizers = [make([{"params": net.parameters()}], lr=1e-3, **SETTINGS) for net, make in makes]
    for step in range(20):
        for net, optimizer in zip((ours, theirs), optimizers):
            for number, parameter in enumerate(net.parameters()):
                parameter.grad = gradient(parameter, 100 * step + number)
            optimizer.step()
    for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
        state, exact = optimizers[0].state[ours[0].weight], optimizers[1].state[theirs[0].weight][name]
        found = dequant_with_qmap(state[name], levels(signed=signed), state[f"{name}_scale"].flatten())
        assert (found - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        *(((4096,), None), ((64, 63), None), ((64, 64), 64), ((3072, 3072), 256), ((30, 1920), 240)),
        *(
            ((5120, 16), 16),
            ((5120, 8), None),
            ((16, 5120), 256),
            ((64, 3, 2, 16, 16), 256),
            ((64, 67), 67),
            ((), None),
        ),
        (((4096, 521)), None),
    ],
)
def test_blocks_lie_within_rows(shape: tuple[int, ...], expected: int | None) -> None:
    assert block_size(shape) == expected


def test_the_parts_of_a_large_weight_are_updated_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for elements in (2**24, 5 * 512, 1):
        monkeypatch.setattr("worldsmith.distributed.adamw_8bit.STEP_ELEMENTS", elements)
        net = network(512, torch.float32)
        optimizer = AdamW8bit([{"params": net.parameters()}], lr=1e-2, **SETTINGS)
        for step in range(3):
            for number, parameter in enumerate(net.parameters()):
                parameter.grad = gradient(parameter, 100 * step + number)
            optimizer.step()
        found.append(copy.deepcopy(net.state_dict()))
    assert all(torch.equal(found[0][name], other[name]) for other in found[1:] for name in found[0])


def test_a_step_that_overflows_changes_no_state(tmp_path: Path) -> None:
    config = pipeline_runs.pipeline_config("flux", pipeline_runs.make_world("flux", tmp_path / "world"))
    config.model.config.precision, config.optimizer.name = "float16", "AdamW8bit"
    config.trainer.loss_scale = LossScaler.Config(init_scale=2.0**36)
    trainer = Trainer(config, run_folder=tmp_path / "run")
    optimizer, batches = trainer.state.optimizer, iter(trainer.state.loader)
    before = {name: tensor.clone() for name, tensor in trainer.state.weights.state_dict().items()}
    assert trainer.training_step(batches).skipped
    assert not optimizer.state
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.state.weights.state_dict().items())
    while trainer.training_step(batches).skipped:
        pass
    assert {float(state["step"]) for state in optimizer.state.values()} == {1.0}
