"""Arithmetic says to the byte what a process holds and what it saves: held against runs of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import state_ranks

from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.degrees import plan_degrees
from worldsmith.models.weights.weight_table import weight_table
from worldsmith.training.state_bytes import checkpoint_bytes, state_bytes
from worldsmith.training.trainer import Trainer

CASES = ["cosmos3.plain", "cosmos3.masters", "flux.bfloat16", "vision_language.adapters32"]
CASES += ["vision_language.AdamW8bit"]
SLOW = {f"{family}.{variant}" for family in state_ranks.FAMILIES for variant in state_ranks.VARIANTS}
SLOW -= {*CASES, *(f"{family}.replicated" for family in state_ranks.FAMILIES)}


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in sorted(SLOW))])
def test_one_process_holds_and_saves_what_is_foretold(case: str, tmp_path: Path) -> None:
    state_ranks.make_world(case.partition(".")[0], tmp_path / case.partition(".")[0])
    found = state_ranks.measure(state_ranks.config_of(case, tmp_path), tmp_path / "project" / "group" / "run")
    state_ranks.require_equal(case, tmp_path, found)


def full_run(recipe: str) -> Trainer.Config:
    config: Trainer.Config = resolve(get_recipe(recipe))
    config.model.config.ema.enabled = True
    return config


@pytest.mark.parametrize(
    ("recipe", "numbers"),
    [("cogvideox_5b", 5_570_283_072), ("wan21_t2v_14b", 14_288_491_584), ("flux_dev", 11_901_408_320)],
)
def test_a_full_run_by_hand(recipe: str, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of published sizes: 4 bytes each of weights, gradients and average, 8 of moments; 16 in a checkpoint."""
    for name in ("DATASET_PATH", "COGVIDEOX_PATH", "FLUX_PATH", "LTX_PATH", "WAN_PATH"):
        monkeypatch.setenv(name, "nowhere")
    config = full_run(recipe)
    model = config.model.config
    table = weight_table(model)
    assert table is not None
    alone = state_bytes(table, config, plan_degrees(model.parallelism, 1))
    steps = 4 * len(table)
    assert (alone.parameters, alone.gradients, alone.average) == (4 * numbers,) * 3
    assert alone.moments == 8 * numbers + steps
    checkpoint = checkpoint_bytes(table, config, plan_degrees(model.parallelism, 1))
    assert checkpoint.tensors - checkpoint.other == 16 * numbers + steps
    model.parallelism.data_parallel_shard_degree = 8
    model.parallelism.data_parallel_replicate_degree = -1
    eight = [state_bytes(table, config, plan_degrees(model.parallelism, 16), rank) for rank in range(16)]
    assert eight[:8] == eight[8:]
    assert sum(states.average for states in eight[:8]) == 4 * numbers
    assert sum(states.moments for states in eight[:8]) == 8 * numbers + 8 * steps
    assert 0 <= 8 * eight[0].parameters - 4 * numbers < 0.003 * numbers  # padded
