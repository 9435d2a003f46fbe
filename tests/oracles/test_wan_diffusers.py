"""A step of ours against the training formula that is documented for Wan: loss and gradients, for each kind of network.

The judge is made of the parts of diffusers' pipelines: only the random numbers are ours.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import tiny_wan
import torch
from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
)
from PIL import Image
from tiny_wan import CLIP_I2V, I2V, T2V, TI2V
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPVisionModel, UMT5EncoderModel

from worldsmith.distributed.world import World
from worldsmith.families.wan.task import WanTask
from worldsmith.models.parameter_names import native_parameters
from worldsmith.objectives.noise_schedule import sample_noise
from worldsmith.training.parallel import build_model
from worldsmith.training.step import StepInputs, forward_backward

SEED, DRAWS = 7, 3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_wan.make_world(tmp_path_factory.mktemp("wan"), clips=9)


def make_task(config: Any) -> WanTask:
    model = build_model(config.model.config, World())
    model.init_weights(SEED)
    return WanTask(model=model, objective=config.objective, data=config.dataloader_train, world=World())


def clips_of(config: Any, world: Path) -> list[Any]:
    """Three clips of one shape, the second of them without its caption."""
    config.dataloader_train.latent_cache, config.dataloader_train.dataset.cfg_dropout_rate = "", 0.0
    found = [s for s in make_task(config).loader().first_samples() if s.num_frames == 9][:3]
    found[1].caption, found[1].text_ids = "", [1]
    return found


def pipeline_of(folder: Path, recipe: str, network: Any) -> Any:
    parts = {
        "tokenizer": AutoTokenizer.from_pretrained(folder / "tokenizer"),
        "text_encoder": UMT5EncoderModel.from_pretrained(folder / "text_encoder"),
        "vae": AutoencoderKLWan.from_pretrained(folder / "vae"),
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "transformer": network,
    }
    if recipe == CLIP_I2V:
        parts["image_encoder"] = CLIPVisionModel.from_pretrained(folder / "image_encoder")
        parts["image_processor"] = CLIPImageProcessorPil.from_pretrained(folder / "image_processor")
    return (WanPipeline if recipe == T2V else WanImageToVideoPipeline)(**parts, expand_timesteps=recipe == TI2V)


def step_of_diffusers(world: Path, recipe: str, config: Any, clips: list[Any]) -> dict[str, Any]:
    task = make_task(config)
    network = WanTransformer3DModel(**asdict(config.model.config.network))
    network.load_state_dict({name: p.detach() for name, p in task.model.network.named_parameters()}, strict=True)
    pipeline = pipeline_of(world / recipe, recipe, network)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in tiny_wan.STATISTICS.values())
    length, losses = config.model.config.text_encoder.max_length, []
    for clip in clips:
        pixels = clip.video[None].float() / 127.5 - 1
        with torch.no_grad():
            x0 = (pipeline.vae.encode(pixels).latent_dist.mode() - mean) / std
        text = WanPipeline._get_t5_prompt_embeds(pipeline, clip.caption, max_sequence_length=length)
        noise = sample_noise(x0.shape[1:], seed=DRAWS, position=clip.position)[None]
        sigma = task.objective.sigma(clip, seed=DRAWS)
        noisy, timestep = (1 - sigma) * x0 + sigma * noise, torch.tensor([1000 * sigma])
        active = torch.ones_like(x0)
        if recipe == TI2V:
            active[:, :, : clip.condition_frames] = 0
            noisy = (1 - active) * x0 + active * noisy
            timestep = (active[0][0][:, ::2, ::2] * timestep).flatten()[None]
        image_states = None
        if recipe == CLIP_I2V:
            frame = Image.fromarray(clip.video[:, 0].permute(1, 2, 0).numpy())
            with torch.no_grad():
                image_states = pipeline.encode_image(frame, "cpu")
        if recipe in (I2V, CLIP_I2V):
            _, beside = pipeline.prepare_latents(pixels[:, :, 0], 1, 4, *pixels.shape[3:], 9, torch.float32)
            noisy = torch.cat([noisy, beside], dim=1)
        answer = network(noisy, timestep, text, image_states).sample
        losses.append((active * (answer - (noise - x0)) ** 2).sum() / active.sum())
    loss = torch.stack(losses).mean()
    loss.backward()
    return {"loss": float(loss.detach()), "gradients": {name: p.grad for name, p in network.named_parameters()}}


@pytest.mark.parametrize("recipe", [T2V, TI2V, I2V, CLIP_I2V])
def test_loss_and_gradients_are_those_of_the_formula(world: Path, recipe: str) -> None:
    config = tiny_wan.tiny_config(world, recipe)
    clips = clips_of(config, world)
    if recipe == TI2V:
        clips[0].condition_frames, clips[1].condition_frames, clips[2].condition_frames = 1, 0, 1
    judge = step_of_diffusers(world, recipe, config, clips)
    task = make_task(config)
    sigmas = [task.objective.sigma(clip, seed=DRAWS) for clip in clips]
    assert recipe != I2V or min(sigmas) >= 0.9  # the levels of the expert for high noise
    step = forward_backward(StepInputs(0, [clips]), task, seed=DRAWS)
    assert step.loss == pytest.approx(judge["loss"], rel=1e-5)
    own = {name: p.grad for name, p in native_parameters(task.model.network).items()}
    assert own.keys() == judge["gradients"].keys()
    for name, gradient in judge["gradients"].items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(own[name], gradient, rtol=1e-4, atol=1e-5, msg=name)
