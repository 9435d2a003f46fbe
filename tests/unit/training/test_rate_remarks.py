"""Remarks on a learning rate, or a scale of adapters, that is far from what is usual."""

from __future__ import annotations

from typing import Any

import pytest

from worldsmith.config import get_recipe, recipe_names
from worldsmith.training.preflight import rate_remarks, schedule_remarks


def config_of(recipe: str, **settings: Any) -> Any:
    config: Any = get_recipe(recipe)
    config.optimizer.lr = settings.pop("lr", config.optimizer.lr)
    for name, value in settings.items():
        setattr(config.model.config, name, value)
    return config


@pytest.mark.parametrize("recipe", [name for name in recipe_names() if name.startswith(("cogvideox", "flux", "wan"))])
def test_shipped_recipes_have_usual_rates(recipe: str) -> None:
    assert not list(rate_remarks(config_of(recipe)))


@pytest.mark.parametrize(
    ("recipe", "settings", "said"),
    [
        ("cogvideox_2b_lora", {"lora_alpha": 1}, "lora_alpha / lora_rank = 1/128"),
        ("cogvideox_2b_lora", {"lora_alpha": 63}, "lora_alpha / lora_rank = 63/128"),
        ("cogvideox_2b_lora", {"lora_alpha": 64}, None),
        ("cogvideox_2b_lora", {"lr": 1e-5}, "lr = 1e-05; 2e-05 to 0.002 is usual for 'cogvideox' with adapters"),
        ("cogvideox_2b_lora", {"lr": 3e-3}, "0.002 is usual"),
        ("cogvideox_2b", {"lr": 1e-3}, "lr = 0.001; 1e-06 to 5e-05 is usual for 'cogvideox' without adapters"),
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
