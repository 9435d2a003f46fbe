"""What is used of transformers beyond its documented interface: one that lacks it must not be installed."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from transformers import AttentionInterface, AttentionMaskInterface, conversion_mapping, core_model_loading
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeModel

FIRST = Version("5.18.0")
"""The first whose Qwen3-VL takes pictures that are encoded already; all else came earlier."""


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (Qwen3VLModel.forward, {"mm_encoder_outputs", "position_ids"}),
        (Qwen3VLMoeModel.forward, {"mm_encoder_outputs", "position_ids"}),
        (sdpa_mask, {"attention_mask", "local_size", "allow_is_causal_skip"}),
        (sdpa_attention_forward, {"attention_mask", "kwargs"}),
        (AttentionInterface.register, {"key", "value"}),
        (AttentionMaskInterface.register, {"key", "value"}),
        (conversion_mapping.get_model_conversion_mapping, {"add_legacy"}),
        (core_model_loading.rename_source_key, {"base_model_prefix", "meta_state_dict"}),
        (core_model_loading.revert_weight_conversion, set()),
        (core_model_loading.dot_natural_key, set()),
        (core_model_loading.PrefixChange, set()),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_it_is_there(function: object, names: set[str]) -> None:
    assert names <= inspect.signature(function).parameters.keys()  # type: ignore[arg-type]


def test_the_oldest_that_may_be_installed_has_it() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    (needed,) = [r for r in map(Requirement, project["dependencies"]) if r.name == "transformers"]
    assert FIRST in needed.specifier
    assert Version("5.17.99") not in needed.specifier
