"""NetworkConfig: values of the released tiers and the errors of sizes that do not fit."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace

import pytest

from worldsmith.families.cosmos3.network.architecture import edge, nano, super_, tiny


def test_tiers_and_tiny_are_valid_and_equal_by_value():
    for tier in (edge, nano, super_, tiny, lambda: tiny(edge_style=True)):
        config = tier()
        config.check()
        assert config == tier() == copy.deepcopy(config)
        assert config.patch_dim == 192


def test_super_has_more_query_channels_than_hidden_and_edge_has_its_own_norms():
    assert super_().num_attention_heads * super_().head_dim == 8192 != super_().hidden_size
    assert (edge().hidden_act, edge().qk_norm_for_text, edge().use_und_k_norm_for_gen) == ("relu2", False, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mrope_section": [12, 10, 9]}, "sum to head_dim / 2 = 32"),
        ({"mrope_section": [8, 16, 8]}, "cannot be interleaved"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3: the first must be a multiple"),
        ({"use_und_k_norm_for_gen": True}, "set qk_norm_for_text = false"),
        ({"attention_bias": True}, "is not supported"),
        ({"hidden_size": 0}, "hidden_size must be at least 1, found 0"),
    ],
)
def test_sizes_that_do_not_fit_are_named(change, words):
    with pytest.raises(ValueError, match=words):
        replace(tiny(), **change).check()


def test_configs_are_importable_without_torch():
    code = (
        "import sys, worldsmith.models.spec, worldsmith.families.cosmos3.network.architecture, "
        "worldsmith.families.cosmos3.text_tokenizer, worldsmith.families.cosmos3.weights.diffusers_keys; "
        "print([m for m in ('torch', 'transformers', 'diffusers') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
