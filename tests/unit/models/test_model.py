"""What the config of every model refuses, whatever its family."""

from __future__ import annotations

import re

import pytest

from worldsmith.config import get_recipe


@pytest.mark.parametrize(
    ("lora", "patterns", "words"),
    [
        (True, [], None),
        (True, ["lora_"], None),
        (True, ["q_proj"], None),
        (True, ["layers.3.self_attn.q_proj", "lora_A"], None),
        (True, ["layers.3.", "time_embedder"], "['time_embedder'] selects none of the adapters"),
        (True, ["time_embedder"], "selects none of the adapters"),
        (True, ["lorra_"], "selects none of the adapters"),
        (False, ["lora_"], "no parameter would be trained"),
        (False, ["lora_", "moe_gen"], None),
    ],
)
def test_adapters_that_nobody_trains(lora: bool, patterns: list[str], words: str | None) -> None:
    model = get_recipe("moving_shapes").model.config
    model.lora_enabled, model.lora_target_modules = lora, "self_attn.q_proj"
    if words is None:
        model.check_trained(patterns)
        return
    with pytest.raises(ValueError, match=re.escape(words)):
        model.check_trained(patterns)
