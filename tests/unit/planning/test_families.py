"""Every family makes whole steps without memory, and holds in them what it holds in a real run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from recipe_environment import PLACES

import worldsmith.families.recipes  # noqa: F401 (registers them)
from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.world import World
from worldsmith.planning.simulation.memory_tracker import MemoryTracker
from worldsmith.planning.simulation.simulate import measure_step, simulate
from worldsmith.planning.simulation.tracked_run import TrackedRun, as_simulated
from worldsmith.planning.simulation_inputs import assumed_batches, substitute_missing_components
from worldsmith.planning.work import StepWork

TINY = ["cogvideox_5b_i2v_tiny"]
SLOW_TINY = [
    "llava_ov_tiny",
    "vision_sft_tiny",
    "cogvideox1_5_5b_i2v_tiny",
    "flux_tiny",
    "ltx_video_tiny",
    "wan21_t2v_tiny",
    "wan22_ti2v_tiny",
    "falling_questions",
    "robots_tiny",
]
FULL = {
    # recipe: the settings of the network that say how deep it is
    "vision_sft_super": ("num_hidden_layers",),
    "cogvideox1_5_5b_i2v": ("num_layers",),
    "flux_dev": ("num_layers", "num_single_layers"),
    "ltx_video_2b": ("num_layers",),
    "wan21_i2v_14b": ("num_layers",),
    "wan22_ti2v_5b_lora": ("num_layers",),
    "videophy2_sft_super": (),
}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)


def run_tree(recipe: str) -> Any:
    return resolve(get_recipe(recipe), keep_unset="names")


def real_step(config: Any, batches: Any) -> StepWork:
    tracker = MemoryTracker()
    run = TrackedRun(as_simulated(config), World(), tracker, batches)
    with tracker:
        run.build()
        run.model.draw_weights(0)
        return measure_step(run, start=time.perf_counter())


@pytest.mark.parametrize("recipe", [*TINY, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_TINY)])
def test_a_step_without_memory_holds_what_a_real_one_holds(recipe: str) -> None:
    """But for indices: they have values here, and are followed from where they meet others."""
    with substitute_missing_components(run_tree(recipe)) as stated:
        batches = assumed_batches(stated.config).batches
        found, real = simulate(stated.config, batches, ranks=1), real_step(stated.config, batches)
    peaks, expected = ({p.name: p.peak for p in work.phases if p.name != "building"} for work in (found, real))
    assert peaks == pytest.approx(expected, rel=5e-3)
    assert (found.model_flops, found.hardware_flops) == (real.model_flops, real.hardware_flops)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", FULL)
def test_a_full_size_recipe_makes_steps_on_eight_ranks(recipe: str) -> None:
    """At two layers of its depth; every other size is that of the recipe."""
    config = run_tree(recipe)
    for name in FULL[recipe]:
        setattr(config.model.config.network, name, 2)
    with substitute_missing_components(config) as stated:
        if not FULL[recipe]:
            cut_folder(Path(stated.config.model.config.policy.backbone.model_name))
        work = simulate(stated.config, assumed_batches(stated.config).batches, ranks=8)
    assert work.ranks == 8
    assert work.tokens > 1000
    assert work.model_flops > 1e12
    assert {traffic.op for traffic in work.traffic} >= {"all_gather", "reduce_scatter"}


def cut_folder(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    settings["text_config"]["num_hidden_layers"] = 3  # as many as the encoder gives features to
    (folder / "config.json").write_text(json.dumps(settings))


def test_selective_recomputation_where_a_block_has_a_part_of_its_own_that_is_not_sharded() -> None:
    """FSDP names what it gathers for a profiler once more in the backward pass, which PyTorch took for other work."""
    config = run_tree("wan21_t2v_tiny")
    parallelism = config.model.config.parallelism
    parallelism.data_parallel_replicate_degree, parallelism.data_parallel_shard_degree = 2, 1
    config.model.config.activation_checkpointing.mode = "selective"
    with substitute_missing_components(config) as stated:
        work = simulate(stated.config, assumed_batches(stated.config, fill=0.1).batches, ranks=2)
    assert work.hardware_flops > work.model_flops
