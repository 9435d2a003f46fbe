"""The shipped parts of a tiny FLUX pipeline, measured from their files and read by the libraries that define them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL
from transformers import CLIPTextModel, T5EncoderModel

from worldsmith.assets import asset_path
from worldsmith.demo.moving_shapes import COMBINATIONS, render_moving_shape, sample_scene
from worldsmith.families.flux.text_encoder import FluxTextEncoder
from worldsmith.models.video_vae.posterior import ImageVAE


def test_images_come_back_as_well_as_the_card_says_and_latents_are_scaled() -> None:
    folder = asset_path("tiny_flux")
    vae = ImageVAE.Config(vae_path=str(folder), precision="float32").build()
    assert isinstance(vae.model, AutoencoderKL)
    rng = np.random.default_rng(20_003)
    errors, latents = [], []
    for attributes in COMBINATIONS[::5]:
        image = torch.from_numpy(render_moving_shape(sample_scene(rng, attributes), frames=slice(0, 1))).permute(
            3, 0, 1, 2
        )
        moments = vae.encode(image)
        latents.append(vae.latents(moments, torch.zeros(4, 1, 8, 8)))
        errors.append((vae.decode(latents[-1]).double() - image).square().mean())
    psnr = float(np.mean([10 * np.log10(255**2 / error) for error in errors]))
    stated = re.search(r"mean PSNR of \d+ held-out images is ([\d.]+) dB", (folder / "README.md").read_text())
    assert stated is not None
    assert psnr == pytest.approx(float(stated[1]), abs=1.5)
    together = torch.stack(latents)
    assert abs(together.mean()) < 0.2
    assert 0.9 < together.std() < 1.1
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 4 * 2**20


def test_both_encoders_tell_captions_apart() -> None:
    config = FluxTextEncoder.Config(path=str(asset_path("tiny_flux")), max_length=16, precision="float32")
    config.check_files()
    encoder = FluxTextEncoder(config)
    states = torch.stack(encoder.states([encoder.reader(text) for text in ("A red square.", "A blue square.")], "cpu"))
    assert isinstance(encoder.clip, CLIPTextModel)
    assert isinstance(encoder.encoder, T5EncoderModel)
    assert states.shape == (2, 17, 64)
    assert (states[0] - states[1]).abs().amax(1)[[0, 2]].min() > 0.1
