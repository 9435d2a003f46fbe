"""The sizes of published reasoners make the networks of transformers that have their published counts."""

from __future__ import annotations

import pytest
import torch

from worldsmith.families.vision_language.published import PUBLISHED, SIZES, published_config

COUNTS = {
    "2B": 2_127_532_032,
    "4B": 4_437_815_808,
    "8B": 8_767_123_696,
    "32B": 33_357_390_064,
    "30B-A3B": 31_070_754_032,
    "235B-A22B": 235_670_022_896,
    "2.5 3B": 3_754_622_976,
    "2.5 7B": 8_292_166_656,
    "2.5 32B": 33_452_718_336,
    "2.5 72B": 73_410_777_344,
}
NAMES = {size: name for name, size in reversed(PUBLISHED.items())}


@pytest.mark.parametrize("size", SIZES)
def test_transformers_makes_a_network_of_the_published_size(size: str) -> None:
    from transformers import AutoConfig, AutoModelForImageTextToText

    found = published_config(NAMES[size])
    assert found is not None
    with torch.device("meta"):
        network = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**found))
    assert sum(parameter.numel() for parameter in network.parameters()) == COUNTS[size]


def test_names_that_are_known() -> None:
    assert all(published_config(f"hf://{name}@main") == SIZES[size] for name, size in PUBLISHED.items())
    assert PUBLISHED["nvidia/Cosmos-Reason1-7B"] == PUBLISHED["Qwen/Qwen2.5-VL-7B-Instruct"]
    assert published_config("nvidia/Cosmos3-Edge") is None
    assert published_config("/nowhere/Qwen3-VL-8B-Instruct") is None
