"""How CogVideoX is sampled where nobody says it: as the run, the published weights or their scheduler have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worldsmith.config.errors import UserError
from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.plain import to_dict
from worldsmith.families.cogvideox.architecture import cogvideox1_5_5b, cogvideox_2b, cogvideox_5b
from worldsmith.families.cogvideox.formats import CogVideoXFormats
from worldsmith.families.cogvideox.model import CogVideoXGenerator

FORMATS = CogVideoXFormats("cogvideox")
SCHEDULER = {
    "_class_name": "CogVideoXDDIMScheduler", "beta_schedule": "scaled_linear", "prediction_type": "v_prediction",
    "num_train_timesteps": 1000, "snr_shift_scale": 2.0, "timestep_spacing": "linspace",
}  # fmt: skip


def run_tree(**sampling: Any) -> dict[str, Any]:
    recipe: Any = get_recipe("cogvideox_2b")
    for name, value in sampling.items():
        setattr(recipe.model.config.sampling, name, value)
    return to_dict(recipe)


def test_a_run_says_how_it_is_sampled() -> None:
    told = FORMATS.defaults_of_run(run_tree())
    assert (told.scheduler, told.dynamic_guidance, told.steps, told.shift_scale) == ("ddim", "off", 50, 3.0)
    assert (told.num_frames, told.captions_as_given, told.shift) == (49, False, None)
    told = FORMATS.defaults_of_run(run_tree(scheduler="dpm", steps=20, guidance=4.0))
    assert (told.scheduler, told.dynamic_guidance, told.steps, told.guidance) == ("dpm", "by_timestep", 20, 4.0)
    earlier = run_tree()
    del earlier["model"]["config"]["sampling"]
    assert FORMATS.defaults_of_run(earlier) == FORMATS.defaults_of_run(run_tree())


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (cogvideox_2b(), ("ddim", 3.0, 480, 720, 49, 8.0)),
        (cogvideox_5b(), ("dpm", 1.0, 480, 720, 49, 8.0)),
        (cogvideox1_5_5b(), ("dpm", 1.0, 768, 1360, 81, 16.0)),
    ],
    ids=["2b", "5b", "1.5"],
)
def test_published_weights_are_sampled_as_published(network: Any, expected: tuple[Any, ...], tmp_path: Path) -> None:
    told = FORMATS.published_defaults(CogVideoXGenerator.Config(network=network), tmp_path)
    found = told.scheduler, told.shift_scale, told.height, told.width, told.num_frames, told.fps
    assert found == expected
    assert told.captions_as_given


def test_the_scheduler_of_a_folder_decides(tmp_path: Path) -> None:
    (tmp_path / "scheduler").mkdir()
    file = tmp_path / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps(SCHEDULER))
    told = FORMATS.published_defaults(CogVideoXGenerator.Config(network=cogvideox_5b()), tmp_path)
    assert (told.scheduler, told.dynamic_guidance, told.shift_scale) == ("ddim", "off", 2.0)
    assert told.make_scheduler("ddim").config.timestep_spacing == "linspace"
    for change, words in (
        ({"_class_name": "DDPMScheduler"}, "expected CogVideoXDDIMScheduler or CogVideoXDPMScheduler, found DDPM"),
        (
            {"prediction_type": "epsilon"},
            "expected {'prediction_type': 'v_prediction'}, found {'prediction_type': 'eps",
        ),
    ):
        file.write_text(json.dumps({**SCHEDULER, **change}))
        with pytest.raises(UserError, match=words):
            FORMATS.published_defaults(CogVideoXGenerator.Config(), tmp_path)
