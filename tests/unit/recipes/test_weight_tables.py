"""For every recipe the arithmetic of weights, and of what is trained, is that of the network that it builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import worldsmith.families.recipes  # noqa: F401 (registers them)
from worldsmith.config.recipes.registry import find_recipe, get_recipe, recipe_names
from worldsmith.config.tree.references import resolve
from worldsmith.families.vision_language.policy import FreezeConfig
from worldsmith.families.vision_language.published import published_config
from worldsmith.models.converters.frozen_base import FrozenBase
from worldsmith.models.model import Model
from worldsmith.models.weights.weight_table import table_of, weight_table
from worldsmith.training.preflight import build_optimizer

UNKNOWN = "videophy2_sft_edge"
"""Its backbone is not trained here."""


def require_equal(run: Any) -> None:
    model: Model.Config = run.model.config
    found = weight_table(model, run.optimizer.keys_to_select)
    built: Model = model.build(device="meta")
    build_optimizer(run, built.network)
    assert found == table_of(built)


def loaded(name: str, folder: Path) -> Any:
    run: Any = resolve(get_recipe(name))
    model = run.model.config
    if model.family == "cogvideox" and model.network.sample_height == 300:
        model.network.sample_height, model.network.sample_width = 96, 170  # else diffusers makes a grid's large table
    published = published_config(model.policy.backbone.model_name) if model.family == "vision_language" else None
    if published is not None:
        (folder / "config.json").write_text(json.dumps(published))
        model.policy.backbone.model_name = str(folder)
    return run


SHIPPED = [name for name in recipe_names() if find_recipe(name).module.startswith("worldsmith.")]
SLOW = [name for name in SHIPPED if name.endswith("_lora")]
"""PEFT takes its time for hundreds of adapters."""
QUICK = [name for name in SHIPPED if name not in (*SLOW, UNKNOWN)]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_the_table_of_a_recipe_is_that_of_its_network(name: str, tmp_path: Path) -> None:
    require_equal(loaded(name, tmp_path))


def test_what_is_not_known_is_said() -> None:
    assert weight_table(resolve(get_recipe(UNKNOWN)).model.config) is None


def chosen(run: Any) -> None:
    run.optimizer.keys_to_select = ["attn1.to_q", "norm2"]


def rounded(run: Any) -> None:
    kept = "to_k" if run.model.name == "cogvideox" else "k_proj"
    run.model.config.converters = [FrozenBase.Config(bits=4, leave_out=[kept])]


def frozen(run: Any) -> None:
    run.model.config.policy.freeze = FreezeConfig(freeze_mm_projector=True, frozen_params=[r"layers\.0", "lm_head"])


def adapted(run: Any) -> None:
    model = run.model.config
    model.lora_enabled, model.lora_rank, model.lora_target_modules = True, 2, "q_proj,linear_fc1,qkv"


CHANGES = [("wan21_t2v_tiny", chosen), ("cogvideox_2b_lora", rounded), ("vision_sft_super_tiny", rounded),
           ("llava_ov_tiny", frozen), ("llava_ov_tiny", adapted)]  # fmt: skip


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=lambda value: getattr(value, "__name__", value))
def test_what_is_chosen_frozen_adapted_and_rounded(name: str, change: Any, tmp_path: Path) -> None:
    if change is rounded:
        pytest.importorskip("compressed_tensors")
    run = loaded(name, tmp_path)
    change(run)
    if name == "llava_ov_tiny":
        run.optimizer.lr_multipliers = {}
    require_equal(run)
