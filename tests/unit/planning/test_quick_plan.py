"""The quick plan: its figures, and that it needs no torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from recipe_environment import PLACES

import worldsmith.families.recipes  # noqa: F401 (registers them)
from worldsmith.config.recipes.registry import get_recipe, recipe_names
from worldsmith.config.tree.references import resolve
from worldsmith.planning.plan import quick_plan

WITHOUT_TORCH = """
import sys
import worldsmith.families.recipes
from worldsmith.config.recipes.registry import get_recipe, recipe_names
from worldsmith.config.tree.references import resolve
from worldsmith.planning.plan import least_ranks, quick_plan
for name in recipe_names():
    run = resolve(get_recipe(name))
    if name != "videophy2_sft_edge":
        quick_plan(run, least_ranks(run))
assert not {"torch", "transformers", "diffusers", "peft"} & sys.modules.keys()
"""


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLACES:
        monkeypatch.setenv(name, name.lower())


def test_every_recipe_is_planned_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def run_of(name: str) -> Any:
    assert name in recipe_names()
    return resolve(get_recipe(name))


def test_the_published_backbone_of_a_run() -> None:
    """Qwen3-VL-8B on 8 processes, by hand: float32 weights, gradients and two moments, 12 bytes saved of each."""
    numbers = 8_767_123_696
    plan = quick_plan(run_of("pre_exp012_llava_ov"), 8)
    assert plan.parameters == plan.trained == numbers
    shares = {"parameters": 4, "gradients": 4, "moments": 8}
    assert plan.states == {kind: pytest.approx(each * numbers / 8, rel=1e-5) for kind, each in shares.items()}
    assert plan.checkpoint_tensors == pytest.approx(12 * numbers, rel=1e-5)
    assert 0 < plan.checkpoint_bytes - plan.checkpoint_tensors < 0.001 * 12 * numbers
    assert plan.kept_checkpoints == 5


def test_a_backbone_that_is_not_known_is_asked_itself(tmp_path: Any) -> None:
    """DeepSeek's: built without memory."""
    from transformers import DeepseekV3Config

    sizes = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 8, "kv_lora_rank": 8}
    DeepseekV3Config(
        vocab_size=32, hidden_size=16, intermediate_size=24, moe_intermediate_size=8, num_hidden_layers=2,
        n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1,
        qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8, **sizes,
    ).save_pretrained(tmp_path)  # fmt: skip
    run = run_of("llava_ov_tiny")
    run.model.config.policy.backbone.model_name = str(tmp_path)
    run.model.config.policy.freeze.trainable_params = []
    run.optimizer.lr_multipliers = {}
    plan = quick_plan(run, 1)
    assert plan.parameters - plan.trained == 4  # the router's balance, which no gradient moves


FULL = ["vision_sft_nano", "videophy2_sft_nano", "cogvideox_5b_lora", "wan22_ti2v_5b", "flux_dev_lora"]


@pytest.mark.parametrize("name", ["vision_sft_tiny", *(pytest.param(name, marks=pytest.mark.slow) for name in FULL)])
def test_the_states_are_those_of_a_simulated_step(name: str) -> None:
    """Of FSDP itself on 8 processes, with the trainer's own optimizer and average; it counts buffers as parameters."""
    from worldsmith.planning.simulation.simulate import simulate
    from worldsmith.planning.simulation_inputs import assumed_batches, substitute_missing_components, task_for

    with substitute_missing_components(run_of(name)) as stated:
        batches = assumed_batches(stated.config, task_for(stated.config, 8), fill=0.1).batches
        work = simulate(stated.config, batches, ranks=8)
        network = stated.config.model.config.build(device="meta").network
        plan = quick_plan(stated.config, 8)
    kinds = {phase.name: dict(phase.kinds) for phase in work.phases}
    found = {kind: kinds["optimizer"].get(kind, 0) for kind in ("parameters", "moments", "average")}
    found["parameters"] -= sum(buffer.nbytes for buffer in network.buffers())
    found["gradients"] = max(kinds[phase].get("gradients", 0) for phase in ("forward", "backward", "optimizer"))
    assert found == {"average": 0, **plan.states}
