"""LTX-Video against diffusers: a training step, sampling, export, and the names of its parameters."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import tiny_ltx
import torch
from diffusers import (
    AutoencoderKLLTXVideo,
    FlowMatchEulerDiscreteScheduler,
    LTXPipeline,
    LTXVideoTransformer3DModel,
)
from transformers import AutoTokenizer, T5EncoderModel

from worldsmith.checkpoint.formats.find_model import find_model, load_model
from worldsmith.distributed.world import World
from worldsmith.families.ltx_video.model import LTXVideoGenerator, NetworkConfig
from worldsmith.families.ltx_video.task import LTXVideoTask
from worldsmith.models.parameter_names import native_parameters
from worldsmith.objectives.noise_schedule import POSTERIOR_STREAM, random_noise, sample_noise
from worldsmith.sampling.generate_videos import generate, generate_latents
from worldsmith.sampling.requests import GenerationRequest
from worldsmith.tools.export.export import Export
from worldsmith.training.parallel import build_model
from worldsmith.training.step import StepInputs, forward_backward
from worldsmith.training.trainer import Trainer

SEED, DRAWS, STEPS, GUIDANCE = 7, 3, 4, 3.0
REQUEST = GenerationRequest(
    prompt="a red square", height=64, width=96, num_frames=17, fps=10.0, seed=3, negative_prompt=""
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_ltx.make_world(tmp_path_factory.mktemp("ltx"), clips=9)


def make_task(config: Any) -> LTXVideoTask:
    model = build_model(config.model.config, World())
    model.init_weights(SEED)
    return LTXVideoTask(model=model, objective=config.objective, data=config.dataloader_train, world=World())


def pipeline_of(folder: Path, network: Any, scheduler: Any = None) -> LTXPipeline:
    pipeline = LTXPipeline(
        tokenizer=AutoTokenizer.from_pretrained(folder / "tokenizer"),
        text_encoder=T5EncoderModel.from_pretrained(folder / "text_encoder"),
        vae=AutoencoderKLLTXVideo.from_pretrained(folder / "vae"),
        scheduler=scheduler or FlowMatchEulerDiscreteScheduler(),
        transformer=network,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def randomize(network: torch.nn.Module) -> None:
    stream = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, parameter[0].numel() ** -0.5, generator=stream)


def step_of_diffusers(folder: Path, task: LTXVideoTask, clips: list[Any]) -> tuple[float, dict[str, torch.Tensor]]:
    """The mean loss, and gradients by name, from the parts of diffusers' pipeline; only the random numbers are ours."""
    network = LTXVideoTransformer3DModel(**asdict(task.model.config.network))
    network.load_state_dict({name: p.detach() for name, p in task.model.network.named_parameters()}, strict=True)
    pipeline, losses = pipeline_of(folder, network), []
    for clip in clips:
        with torch.no_grad():
            posterior = pipeline.vae.encode(clip.video[None].float() / 127.5 - 1).latent_dist
        drawn = random_noise(posterior.mean.shape[1:], seed=DRAWS, position=clip.position, stream=POSTERIOR_STREAM)
        vae = pipeline.vae
        x0 = LTXPipeline._normalize_latents(
            posterior.mean + posterior.std * drawn, vae.latents_mean, vae.latents_std, vae.config.scaling_factor
        )
        text, mask = pipeline._get_t5_prompt_embeds(
            clip.caption, max_sequence_length=task.model.config.text_encoder.max_length
        )
        noise = sample_noise(x0.shape[1:], seed=DRAWS, position=clip.position)[None]
        sigma = task.objective.sigma(clip, seed=DRAWS)
        answer = network(
            hidden_states=LTXPipeline._pack_latents((1 - sigma) * x0 + sigma * noise),
            encoder_hidden_states=text,
            timestep=torch.tensor([1000 * sigma]),
            encoder_attention_mask=mask,
            num_frames=x0.shape[2],
            height=x0.shape[3],
            width=x0.shape[4],
            rope_interpolation_scale=(8 / clip.fps, 32, 32),
        ).sample
        losses.append((answer - LTXPipeline._pack_latents(noise - x0)).square().mean())
    loss = torch.stack(losses).mean()
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in network.named_parameters()}


def test_loss_and_gradients_are_those_of_diffusers(world: Path) -> None:
    """For clips of several frame rates, one of them without its caption."""
    config = tiny_ltx.tiny_config(world)
    config.dataloader_train.latent_cache, config.dataloader_train.dataset.cfg_dropout_rate = "", 0.0
    clips: list[Any] = [s for s in make_task(config).loader().first_samples() if s.num_frames == 9][:3]
    clips[1].caption, clips[1].text_ids, clips[2].fps = "", [1], 12.5
    task = make_task(config)
    loss, gradients = step_of_diffusers(world / "pipeline", task, clips)
    step = forward_backward(StepInputs(0, [clips]), task, seed=DRAWS)
    assert step.loss == pytest.approx(loss, rel=1e-5)
    own = {name: p.grad for name, p in native_parameters(task.model.network).items()}
    assert own.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(own[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("conditioned", [False, True])
def test_videos_equal_the_pipeline(world: Path, tmp_path: Path, conditioned: bool) -> None:
    """Latents and pixels, also of a VAE whose decoder is conditioned on a timestep."""
    tiny_ltx.make_parts(tmp_path, timestep_conditioning=conditioned)
    config: Any = tiny_ltx.tiny_config(world).model.config
    config.tokenizer.vae_path = config.text_encoder.path = str(tmp_path)
    generator = LTXVideoGenerator(config, seed=0)
    randomize(generator.network)
    generator.network.eval().requires_grad_(False)
    requests = [REQUEST, replace(REQUEST, seed=5, fps=20.0)]
    found = generate_latents(generator, requests, steps=STEPS, guidance=GUIDANCE)
    videos = generate(generator, requests, steps=STEPS, guidance=GUIDANCE)
    pipeline = pipeline_of(tmp_path, generator.network, generator.defaults.make_scheduler(None))
    assert pipeline.scheduler.config.shift_terminal == 0.1
    for request, latents, video in zip(requests, found, videos, strict=True):
        given: Any = {
            "prompt": request.prompt, "negative_prompt": "", "height": 64, "width": 96, "num_frames": 17,
            "frame_rate": request.fps, "num_inference_steps": STEPS, "guidance_scale": GUIDANCE,
            "max_sequence_length": config.text_encoder.max_length,
        }  # fmt: skip
        packed = pipeline(**given, generator=torch.Generator().manual_seed(request.seed), output_type="latent").frames
        theirs = LTXPipeline._unpack_latents(packed, 3, 2, 3)[0]
        assert latents.shape == theirs.shape == (128, 3, 2, 3)
        assert (latents - theirs).abs().max() < 1e-4
        frames = pipeline(**given, generator=torch.Generator().manual_seed(request.seed), output_type="pt").frames[0]
        own = torch.as_tensor(getattr(video, "frames", video)).transpose(0, 1).float() / 255
        assert own.shape == frames.shape == (17, 3, 64, 96)
        assert (own - frames).abs().max() < 1.5 / 255


def test_the_exported_pipeline_loads_and_starts_a_run(world: Path, tmp_path: Path) -> None:
    config = tiny_ltx.tiny_config(world, steps=2)
    Trainer(config, run_folder=tmp_path / "run").train()
    Export.Config(model=str(tmp_path / "run"), dtype="float32", out=str(tmp_path / "out")).build().run()
    own, pipeline = load_model(tmp_path / "run"), LTXPipeline.from_pretrained(tmp_path / "out")
    weights = pipeline.transformer.state_dict()
    for name, parameter in native_parameters(own.network).items():
        assert torch.equal(weights[name], parameter), name
    assert pipeline.scheduler.config.use_dynamic_shifting
    assert torch.equal(pipeline.vae.latents_std, torch.linspace(0.5, 1.5, 128))
    pipeline.save_pretrained(tmp_path / "theirs")
    theirs = find_model(tmp_path / "theirs")
    assert theirs.config.network == config.model.config.network
    assert (theirs.defaults.shift, theirs.defaults.base_shift, theirs.defaults.shift_terminal) == (None, 0.95, 0.1)
    config.checkpoint.load_path, config.checkpoint.init = str(tmp_path / "theirs"), "pretrained"
    started = native_parameters(Trainer(config, run_folder=tmp_path / "next").model.network)
    for name, parameter in native_parameters(own.network).items():
        assert torch.equal(started[name], parameter), name


@pytest.mark.parametrize("network", [NetworkConfig(), NetworkConfig(num_layers=1, caption_channels=64)])
def test_names_and_shapes_of_the_parameters(network: NetworkConfig) -> None:
    with torch.device("meta"):
        theirs = LTXVideoTransformer3DModel(**asdict(network))
    assert network.shapes() == {name: tuple(p.shape) for name, p in theirs.named_parameters()}
