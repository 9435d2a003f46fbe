"""Remarks on a schedule, a learning rate, or a scale of adapters that is far from what is usual."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worldsmith.config import get_recipe, recipe_names
from worldsmith.config.load import load
from worldsmith.training.preflight import rate_warnings, schedule_remarks
from worldsmith.training.scheduler import LambdaCosine, schedule_warnings


def config_of(recipe: str, **settings: Any) -> Any:
    config: Any = get_recipe(recipe)
    config.optimizer.lr = settings.pop("lr", config.optimizer.lr)
    for name, value in settings.items():
        setattr(config.model.config, name, value)
    return config


@pytest.mark.parametrize("recipe", [name for name in recipe_names() if name.startswith(("cogvideox", "flux", "wan"))])
def test_shipped_recipes_have_usual_rates(recipe: str) -> None:
    assert not list(rate_warnings(config_of(recipe)))


@pytest.mark.parametrize(
    ("recipe", "settings", "said"),
    [
        ("cogvideox_2b_lora", {"lora_alpha": 1}, "lora_alpha / lora_rank = 1/128"),
        ("cogvideox_2b_lora", {"lora_alpha": 63}, "lora_alpha / lora_rank = 63/128"),
        ("cogvideox_2b_lora", {"lora_alpha": 64}, None),
        (
            "cogvideox_2b_lora",
            {"lr": 1e-5},
            "lr = 1e-05; usual values are 2e-05 to 0.002 for 'cogvideox' with adapters",
        ),
        ("cogvideox_2b_lora", {"lr": 3e-3}, "usual values are"),
        ("cogvideox_2b", {"lr": 1e-3}, "lr = 0.001; usual values are 1e-06 to 5e-05 for 'cogvideox' without adapters"),
        ("cogvideox_2b", {"lr": 5e-5}, None),
        ("cogvideox_2b_tiny", {"lr": 1.0}, None),  # it starts from nothing
    ],
)
def test_what_is_unusual_is_a_note_of_the_start(recipe: str, settings: dict[str, Any], said: str | None) -> None:
    notes = [note for note in schedule_remarks(config_of(recipe, **settings)) if not note.startswith("scheduler")]
    assert len(notes) == (said is not None)
    assert said is None or said in notes[0]


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (1, "the only step has learning rate 0"),
        (2, None),
        (20, None),
        (40, "the run of 40 steps ends within the warm-up of 50 steps"),
        (800, None),
    ],
)
def test_a_warm_up_is_remarked_where_it_matters(steps: int, said: str | None) -> None:
    """Not in a run of a few steps, which only tests that training works."""
    config: Any = get_recipe("moving_shapes")
    config.trainer.max_iter, config.scheduler.cycle_lengths = steps, [800]
    notes = [note for note in schedule_remarks(config) if note.startswith("scheduler")]
    assert len(notes) == (said is not None)
    assert said is None or said in notes[0]


def schedule(cycles: list[int], warm_up: list[int], **values: list[float]) -> LambdaCosine.Config:
    alike = {name: [value] * len(cycles) for name, value in (("f_start", 0.05), ("f_max", 1.0), ("f_min", 0.5))}
    return LambdaCosine.Config(cycle_lengths=cycles, warm_up_steps=warm_up, **{**alike, **values})


def test_a_schedule_that_is_shorter_than_the_run_is_a_warning() -> None:
    assert list(schedule_warnings(schedule([10, 20], [1, 1]), 30, 1e-3)) == []
    (warning,) = schedule_warnings(schedule([10, 20], [1, 1], f_min=[0.0, 0.25]), 40, 1e-3)
    assert (
        "end after 30 steps, but trainer.max_iter is 40: the last 10 steps run at learning rate 0.00025. Set" in warning
    )
    assert "Set scheduler.cycle_lengths=[10,30] for" in warning
    (warning,) = schedule_warnings(schedule([10, 20], [1, 1], f_min=[0.0, 0.0]), 40, 1e-3)
    assert "run at learning rate 0 and train no weights. Set" in warning
    _, warning = schedule_warnings(schedule([10, 20], [1, 20]), 40, 1e-3)  # there is no decay to f_min
    assert "run at learning rate 0.001. Set" in warning
    assert list(schedule_warnings(schedule([10], [1]), "${oc.env:STEPS}", 1e-3)) == []


@pytest.mark.parametrize(
    ("cycles", "warm_up", "steps", "said"),
    [
        ([500], [1000], 500, "still in warm-up at step 500, where it reaches 52.5% of optimizer.lr"),
        ([500], [1000], 60, "still in warm-up at step 60, where it reaches 10.7% of optimizer.lr"),
        ([30], [30], 30, "step 30, where it reaches 100.0% of optimizer.lr"),
        ([2], [50], 2, None),  # a run that only tests whether training works
        ([20], [50], 20, None),
        ([21], [50], 21, "still in warm-up at step 21"),
        ([10, 20], [2, 40], 30, "warm_up_steps[1] = 40 is not below cycle_lengths[1] = 20: the learning rate is still "
         "in warm-up at step 30, where it reaches 52.5% of optimizer.lr, and there is no decay"),
        ([10, 20], [2, 40], 10, None),  # the run ends before that cycle
        ([500], [499], 500, None),
    ],
)  # fmt: skip
def test_a_warm_up_that_its_cycle_ends_is_one_warning_that_says_what_the_schedule_becomes(
    cycles: list[int], warm_up: list[int], steps: int, said: str | None
) -> None:
    found = list(schedule_warnings(schedule(cycles, warm_up), steps, 1e-3))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_the_warnings_of_a_config_appear_when_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATASET_PATH", str(tmp_path))
    words = ["scheduler.cycle_lengths=[10,20]", "trainer.max_iter=40", "data_setting.max_tokens=5"]
    found = load("cogvideox_2b_tiny", words).warnings
    assert any("cycle_lengths end after 30 steps" in warning for warning in found)
    assert any(warning.startswith("data_setting has no effect for task 'vfm'") for warning in found)
