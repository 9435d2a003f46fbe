"""Faults that are put into the code of a run are found by its rehearsal, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from toy_family import ToyModel, ToyTask
from toy_runs import make_world, toy_config

from worldsmith.config.tree.references import resolve
from worldsmith.distributed import fsdp
from worldsmith.tools.rehearse.rehearsal import rehearse
from worldsmith.training import run_state
from worldsmith.training.trainer import Trainer

RANKS = 4


@pytest.fixture
def config(tmp_path: Path) -> Trainer.Config:
    return resolve(toy_config(make_world(tmp_path)))


def findings(config: Trainer.Config, ranks: int = RANKS) -> list[str]:
    return [str(finding) for finding in rehearse(config, ranks).findings]


def is_rank(number: int) -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1 and dist.get_rank() == number


def test_a_sound_run_has_nothing_that_would_go_wrong(config: Trainer.Config) -> None:
    done = rehearse(config, RANKS)
    assert not done.findings
    text = "\n".join(done.lines())
    assert "4 (replicate 1 × shard 4), simulated: all" in text
    assert "4 weights, 4 trained" in text
    assert "resume       on 4, 2, 1 ranks" in text


def test_degrees_that_do_not_divide_are_refused_with_the_sum(config: Trainer.Config) -> None:
    config.model.config.parallelism.data_parallel_shard_degree = 3
    (found,) = findings(config)
    assert "their product needs 3 processes, but the run has 4 processes" in found


def test_a_layer_that_every_rank_holds_whole(config: Trainer.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    right = fsdp.shard_network

    def wrong(network: Any, units: Any, **settings: Any) -> Any:
        return right(network, units, **{**settings, "left_alone": list(network.layers[1].parameters())})

    monkeypatch.setattr(fsdp, "shard_network", wrong)
    found = findings(config)
    assert found[0].startswith(
        "first step: 2 trained weights are not sharded: layers.1.weight [4, 4], layers.1.bias [4]."
    )


def test_a_rank_that_skips_a_collective(config: Trainer.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: ToyTask, weight: float, sums: Any) -> None:
        if not is_rank(2):
            self.world.sum(weight)

    monkeypatch.setattr(ToyTask, "check_gradients", check)
    (found,) = findings(config)
    assert found.startswith("first step: rank 2 skips 1 collective that rank 0 calls: collective ")
    assert "float64, ranks 0-3) on rank 0" in found


def test_a_rank_that_calls_its_collectives_in_another_order(
    config: Trainer.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers have one size: what is mixed up would be sent and taken without a word."""
    right = ToyModel.make_network

    def make(self: ToyModel) -> nn.Module:
        network: Any = right(self)
        if is_rank(1):
            network.forward = lambda x: network.layers[0](network.layers[1](x))
        return network  # type: ignore[no-any-return]

    monkeypatch.setattr(ToyModel, "make_network", make)
    (found,) = findings(config)
    assert "rank 1 calls its collectives in a different order from rank 0: collective " in found
    assert "is all_gather of layers.1 (" in found
    assert "but all_gather of layers.0 (" in found


def test_a_key_of_the_checkpoint_that_only_rank_0_has(config: Trainer.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    right = run_state.RunState._counters

    def counters(self: run_state.RunState) -> dict[str, torch.Tensor]:
        return {**right(self), **({"notes": torch.tensor(1)} if self.world.is_main else {})}

    monkeypatch.setattr(run_state.RunState, "_counters", counters)
    (found,) = findings(config)
    assert found.startswith("save: trainer: only rank 0 of 4 has notes; ")


def test_two_ranks_that_write_the_same_piece_and_leave_a_hole(
    config: Trainer.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = fsdp.make_mesh

    def wrong(world: Any, degrees: Any) -> DeviceMesh:
        order = torch.tensor([1, 0, 2, 3])  # rank 1 takes itself for the first one
        return DeviceMesh("cpu", order, mesh_dim_names=("dp_shard",)) if is_rank(1) else right(world, degrees)

    monkeypatch.setattr(fsdp, "make_mesh", wrong)
    found = findings(config)
    expected = "save: model: net.layers.0.weight: 4 of 16 elements are written by none of the ranks 0-3; ranks 0 and 1"
    assert any(line.startswith(f"{expected} would both write [0:1, 0:4]") for line in found)


def test_an_optimizer_state_of_another_shape_when_it_is_read_again(
    config: Trainer.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = run_state.optimizer_state

    def rows(network: Any, optimizer: Any) -> dict[str, torch.Tensor]:
        state = right(network, optimizer)
        return {name: value.sum(dim=1) if value.ndim == 2 else value for name, value in state.items()}

    monkeypatch.setattr(run_state, "optimizer_state", rows)
    found = findings(config)
    assert found[0].startswith("resume: on 4 ranks, rank 3: optim: 4 of 12 tensors have another shape or dtype: ")
    assert "state.layers.0.weight.exp_avg: expected [4, 4] float32, found [4] float32" in found[0]


def test_a_dtype_that_differs_between_ranks(config: Trainer.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ToyModel.make_network

    def make(self: ToyModel) -> nn.Module:
        network = right(self)
        return network.to(torch.bfloat16) if is_rank(3) else network

    monkeypatch.setattr(ToyModel, "make_network", make)
    found = findings(config)
    assert "first step: layers.0.weight is [4, 4] float32 on rank 0 and [4, 4] bfloat16 on rank 3" in found


def test_a_weight_that_is_trained_on_one_rank_and_frozen_on_another(
    config: Trainer.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(self: ToyModel) -> None:
        self.network.layers[0].requires_grad_(not is_rank(1))  # type: ignore[union-attr]

    monkeypatch.setattr(ToyModel, "choose_trained", choose)
    found = findings(config)
    assert "first step: layers.0.weight, layers.0.bias trained on rank 0 but frozen on rank 1" in found


def test_a_layer_that_is_called_where_the_data_ask_for_it(
    config: Trainer.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of the second share of the data have the shortest packs."""
    config.dataloader_train.max_samples_per_batch = 50
    right = ToyModel.make_network

    def make(self: ToyModel) -> nn.Module:
        network: Any = right(self)
        network.forward = lambda x: network.layers[1](network.layers[0](x)) if len(x) > 2 else network.layers[0](x)
        return network  # type: ignore[no-any-return]

    monkeypatch.setattr(ToyModel, "make_network", make)
    found = findings(config)
    assert found[0].startswith("first step: rank 1 skips ")
    assert "but all_gather of layers.1 (" in found[0]
