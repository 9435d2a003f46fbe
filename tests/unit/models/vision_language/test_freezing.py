"""What is trained, by part and by pattern, and at which learning rate: the table of a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_reasoner import decoder, model_config, qwen3_vl, write_folder

from worldsmith.families.vision_language.freezing import backbone_part, describe_parts
from worldsmith.families.vision_language.policy import FreezeConfig
from worldsmith.models.parameter_names import native_parameters
from worldsmith.training.optimizer import AdamW
from worldsmith.training.start_lines import base_rates

PARTS = {"vision": 27, "projector": 18, "language": 25}
"""Tensors of each part of the tiny model: 2 + 1 + 2·12; 3 mergers of 6; table, norm, head, and 2 layers of 11."""


def trained(folder: Path, config: Any = None, **freeze: Any) -> dict[str, int]:
    settings = model_config(write_folder(folder, config), freeze=FreezeConfig(**freeze))
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in native_parameters(settings.build(device="meta").network).items():
        counts[backbone_part(name)] += parameter.requires_grad
    return counts


@pytest.mark.parametrize(
    ("freeze", "frozen"),
    [
        ({}, ()),
        ({"freeze_vision_encoder": True}, ("vision",)),
        ({"freeze_mm_projector": True}, ("projector",)),
        ({"freeze_llm": True}, ("language",)),
        ({"freeze_vision_encoder": True, "freeze_llm": True}, ("vision", "language")),
        ({"trainable_params": [".*"]}, ()),
        ({"trainable_params": [r"^model\.visual\.(deepstack_)?merger"]}, ("vision", "language")),
        ({"frozen_params": [r"model\.visual\."]}, ("vision", "projector")),
        ({"frozen_params": ["language_model", "lm_head"], "freeze_vision_encoder": True}, ("vision", "language")),
    ],
)
def test_the_table_of_frozen_parts(freeze: dict[str, Any], frozen: tuple[str, ...], tmp_path: Path) -> None:
    assert trained(tmp_path, **freeze) == {part: 0 if part in frozen else count for part, count in PARTS.items()}


def test_a_tied_weight_is_meant_by_any_of_its_names(tmp_path: Path) -> None:
    tied = qwen3_vl(tied=True)
    assert trained(tmp_path, tied, frozen_params=["lm_head"])["language"] == PARTS["language"] - 2
    assert trained(tmp_path, tied, trainable_params=["lm_head"]) == {"vision": 0, "projector": 0, "language": 1}


def test_mistakes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"frozen_params: 'merjer' matches no parameter; similar: "):
        trained(tmp_path, frozen_params=["merjer"])
    with pytest.raises(ValueError, match="all parameters are frozen"):
        trained(tmp_path, freeze_llm=True, frozen_params=["visual"])
    with pytest.raises(ValueError, match="freeze_vision_encoder: this backbone has no such component"):
        trained(tmp_path, decoder("llama"), freeze_vision_encoder=True)
    with pytest.raises(ValueError, match="both given"):
        FreezeConfig(trainable_params=["a"], frozen_params=["b"]).check()
    with pytest.raises(ValueError, match=r"frozen_params\[0\] = .*not a regular expression"):
        FreezeConfig(frozen_params=["("]).check()


def rates(folder: Path, multipliers: dict[str, float], **freeze: Any) -> dict[str, str]:
    model = model_config(write_folder(folder), freeze=FreezeConfig(**freeze)).build(device="meta")
    optimizer = AdamW.Config(lr=1e-5, lr_multipliers=multipliers, fused=False).build(network=model.network).optimizer
    return dict(describe_parts(model.network, base_rates(model.network, optimizer)))


def test_the_table_of_learning_rates(tmp_path: Path) -> None:
    table = rates(tmp_path, {"model.visual.merger": 0.5, "model.visual": 0.1})
    assert table["vision"].endswith("in 27 tensors at learning rate 1e-06")
    assert "in 6 tensors at learning rate 5e-06" in table["projector"]
    assert "in 12 tensors at learning rate 1e-06" in table["projector"]
    assert table["language"].endswith("in 25 tensors at learning rate 1e-05")
    table = rates(tmp_path, {"model.visual": 1.0}, freeze_vision_encoder=True)
    assert table["vision"].endswith("in 27 tensors frozen")
    assert table["projector"].endswith("in 18 tensors at learning rate 1e-05")


def test_a_multiplier_that_reaches_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"none of the names .* contains 'model\.vision'; similar names",
    ):
        rates(tmp_path, {"model.vision": 0.1})
    with pytest.raises(ValueError, match="matches only frozen parameters"):
        rates(tmp_path, {"model.visual.blocks": 0.1}, freeze_vision_encoder=True)
