"""The guidance scale of a run's samples is the default with which its weights generate."""

from __future__ import annotations

from typing import Any

import pytest

from worldsmith.checkpoint.formats.family_formats import formats_of
from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.plain import to_dict


def default_guidance(recipe: str, **settings: Any) -> float:
    run: Any = get_recipe(recipe)
    for name, value in settings.items():
        setattr(run.trainer.callbacks["EveryNDrawSample"], name, value)
    guidance: float = formats_of(run.model.name).defaults_of_run(to_dict(run)).guidance
    return guidance


@pytest.mark.parametrize(
    "recipe",
    ["vision_sft_tiny", "moving_shapes", "vision_sft_nano", "cogvideox_2b", "wan21_t2v_1b", "ltx_video_2b",
     "flux_dev", "flux_schnell_lora"],
)  # fmt: skip
def test_a_run_generates_with_the_guidance_of_its_samples(recipe: str) -> None:
    (scale,) = get_recipe(recipe).trainer.callbacks["EveryNDrawSample"].guidance  # type: ignore[attr-defined]
    assert default_guidance(recipe) == scale


def test_another_guidance_of_the_samples_is_remembered() -> None:
    assert default_guidance("vision_sft_tiny", guidance=[4.5]) == 4.5


def test_several_scales_leave_the_default_of_the_family() -> None:
    assert default_guidance("vision_sft_tiny", guidance=[0.0, 3.0, 7.0]) == 6.0


def test_a_run_without_samples_has_the_default_of_the_family() -> None:
    run: Any = get_recipe("vision_sft_tiny")
    del run.trainer.callbacks["EveryNDrawSample"]
    assert formats_of("cosmos3").defaults_of_run(to_dict(run)).guidance == 6.0
