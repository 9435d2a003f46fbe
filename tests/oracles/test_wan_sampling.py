"""Sampling Wan equals diffusers' pipelines from a generator of the same seed."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import tiny_wan
import torch
from diffusers import WanImageToVideoPipeline, WanPipeline, WanTransformer3DModel
from PIL import Image
from tiny_wan import CLIP_I2V, I2V, T2V, TI2V

from worldsmith.families.wan.model import EXPERTS, WanGenerator
from worldsmith.sampling.generate_videos import generate_latents
from worldsmith.sampling.requests import GenerationRequest

STEPS, GUIDANCE = 4, 3.0
REQUEST = GenerationRequest(
    prompt="a red square", height=64, width=64, num_frames=9, fps=8.0, seed=3, negative_prompt=""
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_wan.make_world(tmp_path_factory.mktemp("wan"), clips=1)


def make_generator(world: Path, recipe: str) -> WanGenerator:
    """Random weights of ordinary size in every parameter."""
    config: Any = tiny_wan.tiny_config(world, recipe).model.config
    generator = WanGenerator(config, seed=0)
    stream = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in generator.network.parameters():
            parameter.normal_(0, parameter[0].numel() ** -0.5, generator=stream)
    generator.network.eval().requires_grad_(False)
    return generator


def pipeline_of(generator: WanGenerator, kind: Any) -> Any:
    generator.read([()])  # loads the encoder
    config = generator.config
    judge = WanTransformer3DModel(**asdict(config.network))
    judge.load_state_dict(generator.network.state_dict())
    experts = {"transformer": judge}
    if config.expert:
        experts = {where: generator.other_expert for where in EXPERTS.values()}
        experts[EXPERTS[config.expert]] = judge
    if config.network.image_dim:
        experts |= {
            "image_encoder": generator.image_encoder.model,
            "image_processor": generator.image_encoder.processor,
        }
    pipeline = kind(
        tokenizer=generator.text_encoder.tokenizer,
        text_encoder=generator.text_encoder.encoder,
        vae=generator.vae.model,
        scheduler=generator.defaults.make_scheduler(),
        boundary_ratio=config.boundary_ratio,
        expand_timesteps=config.expand_timesteps,
        **experts,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def drawn(generator: WanGenerator, kind: Any, **given: Any) -> torch.Tensor:
    """The pipeline's latents [C, t, h, w]."""
    pipeline = pipeline_of(generator, kind)
    length = generator.config.text_encoder.max_length
    texts = [
        WanPipeline._get_t5_prompt_embeds(pipeline, text, max_sequence_length=length) for text in (REQUEST.prompt, "")
    ]
    frames: torch.Tensor = pipeline(
        height=64, width=64, num_frames=9, num_inference_steps=STEPS, guidance_scale=GUIDANCE, output_type="latent",
        generator=torch.Generator().manual_seed(REQUEST.seed), prompt_embeds=texts[0], negative_prompt_embeds=texts[1],
        **given,
    ).frames[0]  # fmt: skip
    return frames


def picture() -> torch.Tensor:
    return torch.randint(0, 256, (3, 1, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def ours(generator: WanGenerator, *, image: torch.Tensor | None = None) -> torch.Tensor:
    given = {} if image is None else {"condition": image, "condition_frames": 1}
    request = replace(REQUEST, **given)
    return generate_latents(generator, [request, replace(request, seed=5)], steps=STEPS, guidance=GUIDANCE)[0]


@pytest.mark.parametrize("recipe", [T2V, TI2V])
def test_videos_of_texts_equal_the_pipeline(world: Path, recipe: str) -> None:
    generator = make_generator(world, recipe)
    found = ours(generator)
    assert found.shape == ((4, 3, 8, 8) if recipe == T2V else (4, 3, 4, 4))
    assert (found - drawn(generator, WanPipeline)).abs().max() < 1e-4
    assert generator.decode(found).shape == (3, 9, 64, 64)


@pytest.mark.parametrize("recipe", [TI2V, I2V, CLIP_I2V])
def test_videos_of_images_equal_the_pipeline(world: Path, recipe: str) -> None:
    """With two experts each answers at its noise levels, and the second may have another scale of guidance."""
    if recipe == I2V:
        tiny_wan.make_expert(world / I2V, tiny_wan.tiny_config(world, I2V), "transformer_2", 1)
    generator = make_generator(world, recipe)
    pixels: Any = Image.fromarray(picture()[:, 0].permute(1, 2, 0).numpy())
    judge = drawn(generator, WanImageToVideoPipeline, image=pixels)
    assert (ours(generator, image=picture()) - judge).abs().max() < 1e-4
    if recipe == I2V:
        generator.defaults = replace(generator.defaults, guidance=GUIDANCE, guidance_2=1.5)
        judge = drawn(generator, WanImageToVideoPipeline, image=pixels, guidance_scale_2=1.5)
        assert (ours(generator, image=picture()) - judge).abs().max() < 1e-4
        with pytest.raises(ValueError, match="this network supports image2video"):
            ours(generator)
