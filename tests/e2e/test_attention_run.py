"""Whole runs with other attention."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tiny_runs

from worldsmith.families.cosmos3.attention.modes import NeighborhoodConfig
from worldsmith.training.trainer import Trainer

CAUSAL = NeighborhoodConfig(window_size=[2, -1, -1], is_causal=[True, False, False])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.make_world(tmp_path_factory.mktemp("world"), clips=2)


def losses_of(world: Path, run_folder: Path, **attention: object) -> list[float]:
    config = tiny_runs.tiny_config(world, steps=3, save_iter=3, layers=2)
    for name, value in attention.items():
        setattr(config.model.config, name, value)
    Trainer(config, run_folder=run_folder).train()
    return [loss for _, loss, *_ in tiny_runs.read_losses(run_folder)]


def test_windows_train_and_dense_three_way_is_two_way(world: Path, tmp_path: Path) -> None:
    """Bit for bit the losses of two_way without windows, others with a causal layer."""
    two_way = losses_of(world, tmp_path / "two_way")
    dense = losses_of(world, tmp_path / "dense", joint_attn_implementation="three_way")
    causal = losses_of(
        world,
        tmp_path / "causal",
        joint_attn_implementation="three_way",
        natten_parameter_list=[{}, {"3d": CAUSAL}],
    )
    assert len(two_way) == 3
    assert dense == two_way
    assert causal != two_way
    assert all(math.isfinite(loss) for loss in causal)
