"""Sampling FLUX equals diffusers' pipeline from a generator of the same seed, latents and images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_flux
import torch
from diffusers import FluxPipeline
from torch.nn.functional import pixel_shuffle

from worldsmith.families.flux.architecture import tiny
from worldsmith.families.flux.formats import SCHNELL
from worldsmith.families.flux.model import FluxDefaults, FluxGenerator
from worldsmith.families.flux.text_encoder import FluxTextEncoder
from worldsmith.models.video_vae.posterior import ImageVAE
from worldsmith.sampling.generate_videos import generate, generate_latents
from worldsmith.sampling.requests import GenerationRequest

REQUEST = GenerationRequest(prompt="a red square", height=64, width=96, num_frames=1, fps=25.0, seed=3)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline")
    tiny_flux.make_parts(folder)
    return folder


@pytest.fixture(scope="module", params=["dev", "schnell"])
def generator(request: pytest.FixtureRequest, parts: Path) -> FluxGenerator:
    """Random weights of ordinary size in every parameter."""
    dev = request.param == "dev"
    config = FluxGenerator.Config(
        precision="float32",
        network=replace(tiny(), guidance_embeds=dev),
        tokenizer=ImageVAE.Config(vae_path=str(parts), precision="float32"),
        text_encoder=FluxTextEncoder.Config(path=str(parts), max_length=16, precision="float32"),
    )
    generator = FluxGenerator(config, seed=0, defaults=FluxDefaults(**({} if dev else SCHNELL)))
    stream = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in generator.network.parameters():
            parameter.normal_(0, parameter[0].numel() ** -0.5, generator=stream)
    generator.network.eval().requires_grad_(False)
    return generator


def drawn(generator: FluxGenerator, request: GenerationRequest, *, steps: int, guidance: float, **said: Any) -> Any:
    """The pipeline's images or packed latents; its scheduler is that of an export."""
    generator.read([()])  # loads the encoders
    scheduler = generator.defaults.make_scheduler(generator.defaults.shift)
    parts = {**generator.text_encoder.parts, "vae": generator.vae.library_model, "transformer": generator.network}
    pipeline = FluxPipeline(**parts, scheduler=scheduler)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline(
        request.prompt, height=request.height, width=request.width, num_inference_steps=steps, guidance_scale=guidance,
        max_sequence_length=16, generator=torch.Generator().manual_seed(request.seed), **said,
    ).images  # fmt: skip


def test_final_latents_and_images_equal_the_pipeline(generator: FluxGenerator) -> None:
    dev = generator.config.network.guidance_embeds
    settings: dict[str, Any] = {"steps": 4, "guidance": 3.5 if dev else 1.0}
    requests = [REQUEST, replace(REQUEST, height=128, seed=5, prompt="a green circle")]
    ours = generate_latents(generator, requests, **settings)
    for found, request in zip(ours, requests, strict=True):
        theirs = drawn(generator, request, **settings, output_type="latent")
        assert found.shape == (4, 1, request.height // 8, request.width // 8)
        grid = request.height // 16, request.width // 16
        theirs = pixel_shuffle(theirs.transpose(1, 2).unflatten(2, grid), 2)[0]
        assert theirs.abs().max() > 0.5
        assert (found[:, 0] - theirs).abs().max() < 1e-4
    image = generate(generator, [REQUEST], **settings)[0]
    judge = torch.as_tensor(drawn(generator, REQUEST, **settings, output_type="pt")[0])
    assert image.shape == (3, 1, 64, 96)
    assert (image[:, 0].float() - judge * 255).abs().max() <= 1


def test_the_network_is_told_the_guidance_and_only_where_it_has_an_input_for_it(generator: FluxGenerator) -> None:
    if not generator.config.network.guidance_embeds:
        with pytest.raises(ValueError, match="guidance: expected 1, found 3"):
            generate_latents(generator, [REQUEST], steps=2, guidance=3.0)
        return
    told = [generate_latents(generator, [REQUEST], steps=2, guidance=scale)[0] for scale in (1.0, 3.5)]
    assert (told[0] - told[1]).abs().max() > 1e-3


def test_a_shift_of_its_own_is_that_of_the_scheduler(generator: FluxGenerator) -> None:
    found = generate_latents(generator, [REQUEST], steps=3, shift=3.0)[0]
    usual = generate_latents(generator, [REQUEST], steps=3)[0]
    assert (found - usual).abs().max() > 1e-3
    with pytest.raises(ValueError, match="scheduler: sampling is Euler's method"):
        generate_latents(generator, [REQUEST], scheduler="dpm")
