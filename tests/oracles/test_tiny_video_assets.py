"""The shipped CogVideoX VAE, T5 and UMT5, measured from their files and read by the libraries of their formats."""

from __future__ import annotations

import json
import re
import runpy
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLCogVideoX
from seen_shapes import seen_attributes
from transformers import T5EncoderModel, T5Tokenizer, UMT5EncoderModel

from worldsmith.assets import asset_path
from worldsmith.demo.moving_shapes import (
    COMBINATIONS,
    HELD_OUT_COMBINATIONS,
    HELD_OUT_WORDINGS,
    TRAIN_COMBINATIONS,
    TRAIN_WORDINGS,
    WORDINGS,
    dense_caption,
    render_moving_shape,
    sample_scene,
)
from worldsmith.families.diffusers_pipeline.text_encoder import T5TextEncoder
from worldsmith.models.video_vae.cogvideox import CogVideoXVAE

SCRIPT = Path(__file__).parents[2] / "scripts/make_tiny_t5.py"
MAX_LENGTH = 16
SCENES = COMBINATIONS[::5]


@pytest.fixture(scope="module")
def vae():
    return CogVideoXVAE.Config(vae_path=str(asset_path("tiny_cogvideox_vae")), precision="float32").build()


@pytest.fixture(scope="module")
def encoded(vae):
    """(attributes, clip, scaled mean of its latents) of unseen scenes with every colour, shape and direction."""
    rng = np.random.default_rng(20_003)
    found = []
    for attributes in SCENES:
        clip = render_moving_shape(sample_scene(rng, attributes))
        moments = vae.encode(torch.from_numpy(clip).permute(3, 0, 1, 2))
        found.append((attributes, clip, moments.chunk(2)[0] * vae.scaling_factor))
    return found


def test_the_detector_reads_reconstructions_right_and_they_are_as_good_as_the_card_says(vae, encoded):
    errors = []
    for attributes, clip, latents in encoded:
        again = vae.decode(latents).permute(1, 2, 3, 0).numpy()
        assert seen_attributes(again) == attributes
        errors.append(np.mean((again.astype(np.float64) - clip) ** 2))
    psnr = np.mean([10 * np.log10(255**2 / e) for e in errors])
    stated = float(
        re.search(r"PSNR, mean \| ([\d.]+) dB", (asset_path("tiny_cogvideox_vae") / "README.md").read_text())[1]
    )
    assert abs(psnr - stated) < 1.5


def test_scaled_latents_have_unit_deviation_and_little_mean(encoded):
    latents = torch.stack([latents for _, _, latents in encoded])
    assert latents.shape[1:] == (8, 5, 8, 8)
    assert abs(latents.mean()) < 0.3
    assert 0.9 < latents.std() < 1.1
    assert (latents.transpose(0, 1).flatten(1).std(1) > 0.5).all(), "every channel carries something"


def test_the_vae_is_of_the_published_class_and_small():
    folder = asset_path("tiny_cogvideox_vae")
    model = AutoencoderKLCogVideoX.from_pretrained(folder)
    config = model.config
    assert (len(config.block_out_channels), config.temporal_compression_ratio, config.latent_channels) == (4, 4, 8)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 4 * 2**20


@pytest.fixture(scope="module")
def encoder():
    made = T5TextEncoder.Config(path=str(asset_path("tiny_t5")), max_length=MAX_LENGTH, precision="float32").build()
    made.load("cpu")
    return made


def test_words_of_captions_are_tokens_and_other_text_is_read_too(encoder):
    assert isinstance(encoder.tokenizer, T5Tokenizer)
    assert isinstance(encoder.encoder, T5EncoderModel)
    words = encoder.tokenizer("The red square moves leftward.").tokens()
    assert words == ["▁The", "▁red", "▁square", "▁moves", "▁leftward", ".", "</s>"]
    assert encoder.tokenizer.decode(encoder.tokenizer("Two dogs, 3 cats!").input_ids, skip_special_tokens=True) == (
        "Two dogs, 3 cats!"
    )
    captions = [dense_caption(*pair) for pair in product(COMBINATIONS, WORDINGS)]
    assert max(len(encoder.tokenizer(caption).input_ids) for caption in captions) <= MAX_LENGTH


def test_a_linear_map_reads_attributes_that_it_never_saw_together_from_the_states(encoder):
    def states(wordings, combinations):
        captions = [(dense_caption(a, w), a) for a in combinations for w in wordings]
        ids = [encoder.padded(encoder.tokenizer(caption).input_ids) for caption, _ in captions]
        with torch.no_grad():
            mean = encoder.encoder(torch.tensor(ids))[0].mean(1)
        return torch.cat([mean, torch.ones(len(mean), 1)], 1).double(), [attributes for _, attributes in captions]

    seen, answers = states(TRAIN_WORDINGS, TRAIN_COMBINATIONS)
    other, wanted = states(HELD_OUT_WORDINGS, HELD_OUT_COMBINATIONS)
    for place in range(3):
        values = sorted({a[place] for a in answers})
        chosen = torch.tensor([[float(a[place] == value) for value in values] for a in answers]).double()
        solution = torch.linalg.lstsq(seen.T @ seen + 1e-4 * torch.eye(seen.shape[1]), seen.T @ chosen).solution
        read = (other @ solution).argmax(1)
        right = np.mean([values[i] == a[place] for i, a in zip(read, wanted)])
        assert right >= 0.98, (values, right)


@pytest.mark.parametrize("kind", ["t5", "umt5"])
def test_the_script_makes_the_shipped_encoders_again(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", [SCRIPT.name, "--kind", kind, "--out", str(tmp_path)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    shipped = asset_path(f"tiny_{kind}")
    assert (tmp_path / "tokenizer.json").read_bytes() == (shipped / "tokenizer.json").read_bytes()
    assert json.loads((tmp_path / "config.json").read_text()) == json.loads((shipped / "config.json").read_text())
    # Not the same bytes on every processor: random numbers are rounded otherwise.
    library_class = {"t5": T5EncoderModel, "umt5": UMT5EncoderModel}[kind]
    again, before = (dict(library_class.from_pretrained(p).named_parameters()) for p in (tmp_path, shipped))
    assert again.keys() == before.keys()
    assert all(torch.allclose(again[name], before[name], atol=2e-2, rtol=1e-2) for name in before)
