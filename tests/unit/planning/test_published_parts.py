"""Parts that are not at hand are planned as they were published."""

from dataclasses import replace

import pytest
import torch
from recipe_environment import PLACES
from torch._subclasses.fake_tensor import FakeTensorMode

import worldsmith.families.recipes  # noqa: F401 (registers them)
from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.planning.simulation_inputs import substitute_missing_components

DEPTHS = ("num_hidden_layers", "num_layers", "num_single_layers")
PUBLISHED = {
    # recipe: millions of parameters of each frozen part, by its name in the model
    "vision_sft_nano": {"vae": 704.7},
    "cogvideox_2b": {"vae": 215.6, "text_encoder": 4762.3},
    "flux_dev": {"vae": 83.8, "text_encoder": 4762.3 + 123.1},
    "wan21_i2v_14b": {"vae": 126.9, "text_encoder": 5680.9, "image_encoder": 630.8},
    "wan22_ti2v_5b": {"vae": 704.7, "text_encoder": 5680.9},
}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_frozen_parts_have_their_published_sizes(recipe):
    with substitute_missing_components(run_tree(recipe)) as stated:
        config = stated.config.model.config
        small = {name: 1 for name in DEPTHS if hasattr(config.network, name)}
        model = replace(config, network=replace(config.network, **small)).build(device="meta")
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.device = torch.device("cpu")
            found = {part: size_of(getattr(model, part)) / 1e6 for part in PUBLISHED[recipe]}
    assert found == pytest.approx(PUBLISHED[recipe], abs=0.06)
    assert not stated.reads_texts


def run_tree(recipe: str):
    """As it stands where no variable is set."""
    return resolve(get_recipe(recipe), keep_unset="names")


def size_of(part) -> int:
    if hasattr(part, "load") and not hasattr(part, "model"):
        part.load("cpu")
    parts = [part.model] if hasattr(part, "model") else [part.encoder, getattr(part, "clip", None)]
    return sum(p.numel() for module in parts if module is not None for p in module.parameters())


def test_what_is_at_hand_stays():
    config = run_tree("vision_sft_tiny")
    with substitute_missing_components(config) as stated:
        assert stated.config.model == config.model
        assert (stated.assumptions, stated.reads_texts) == ([], True)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("Qwen/Qwen3-VL-8B-Instruct", 8_767_123_696), ("nvidia/Cosmos-Reason1-7B", 8_292_166_656)],
)
def test_a_reasoner_has_the_sizes_of_its_name(name, parameters):
    config = run_tree("pre_exp012_llava_ov")
    config.model.config.policy.backbone.model_name = name
    with substitute_missing_components(config) as stated:
        model = stated.config.model.config.build(device="meta")
        assert sum(p.numel() for p in model.network.parameters()) == parameters
        assert model.folder.is_dir()
    assert f"not on this machine; substituted by the sizes of {name}" in stated.assumptions[0]
