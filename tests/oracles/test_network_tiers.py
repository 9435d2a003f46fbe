"""The released tiers on the meta device: tensor counts, parameter counts and shapes, without a byte of weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from diffusers import Cosmos3OmniTransformer

from worldsmith.checkpoint.diffusers_keys import native_to_diffusers, transformer_config
from worldsmith.models.cosmos3.architecture import edge, nano, super_
from worldsmith.models.cosmos3.network import Cosmos3Network


@pytest.mark.parametrize(
    ("tier", "tensors", "billions"),
    [
        pytest.param(edge, 554, 3.37, id="edge"),
        pytest.param(nano, 814, 15.17, id="nano"),
        pytest.param(super_, 1430, 64.02, id="super"),
    ],
)
def test_released_tiers_have_the_published_sizes_and_the_shapes_of_diffusers(tier, tensors, billions):
    config = replace(tier(), action_gen=True, sound_gen=True)
    config.check()
    with torch.device("meta"):
        ours = Cosmos3Network(config).state_dict()
        theirs = Cosmos3OmniTransformer(**transformer_config(config)).state_dict()
    assert len(ours) == tensors
    assert round(sum(value.numel() for value in ours.values()) / 1e9, 2) == billions
    assert {native_to_diffusers(name): v.shape for name, v in ours.items()} == {n: v.shape for n, v in theirs.items()}
