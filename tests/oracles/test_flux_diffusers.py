"""A step of ours against the training formula of diffusers' example for FLUX: loss and gradients; full sizes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import tiny_flux
import torch

from worldsmith.distributed.world import World
from worldsmith.families.flux.architecture import NetworkConfig, flux_dev, flux_schnell, tiny
from worldsmith.families.flux.model import FluxGenerator
from worldsmith.families.flux.task import FluxTask
from worldsmith.models.parameter_names import native_parameters
from worldsmith.objectives.noise_schedule import POSTERIOR_STREAM, random_noise, sample_noise
from worldsmith.training.parallel import build_model
from worldsmith.training.step import StepInputs, forward_backward

DRAWS = 3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_flux.make_world(tmp_path_factory.mktemp("flux"))


def make_task(config: Any) -> FluxTask:
    model = build_model(config.model.config, World())
    model.init_weights(7)
    return FluxTask(model=model, objective=config.objective, data=config.dataloader_train, world=World())


def video_frames(task: FluxTask) -> list[Any]:
    """Four samples, one of them of a clip, one without its caption."""
    task.data.latent_cache = ""
    found = list(task.loader().first_samples())
    clip = next(sample for sample in found if sample.key.startswith("clip"))
    chosen = [clip, *[sample for sample in found if sample.key.startswith("picture")][:3]]
    assert [sample.video.shape for sample in chosen] == [(3, 1, 64, 64)] * 4
    chosen[2].caption, chosen[2].text_ids = "", task.tokenize("")
    return chosen


def step_of_diffusers(world: Path, task: FluxTask, pictures: list[Any]) -> dict[str, Any]:
    """With its pipeline's parts; only the random numbers are ours."""
    from diffusers import AutoencoderKL, FluxPipeline, FluxTransformer2DModel
    from transformers import CLIPTextModel, CLIPTokenizer, T5EncoderModel, T5TokenizerFast

    folder, config = world / "pipeline", task.model.config
    network = FluxTransformer2DModel(**asdict(config.network))
    network.load_state_dict({name: p.detach() for name, p in task.model.network.named_parameters()}, strict=True)
    pipeline = FluxPipeline(
        None, AutoencoderKL.from_pretrained(folder / "vae"), CLIPTextModel.from_pretrained(folder / "text_encoder"),
        CLIPTokenizer.from_pretrained(folder / "tokenizer"), T5EncoderModel.from_pretrained(folder / "text_encoder_2"),
        T5TokenizerFast.from_pretrained(folder / "tokenizer_2"), network,
    )  # fmt: skip
    vae = pipeline.vae.config
    latents, noises = [], []
    for picture in pictures:
        with torch.no_grad():
            posterior = pipeline.vae.encode(picture.video[None, :, 0].float() / 127.5 - 1).latent_dist
        shape = posterior.mean.shape[1:]
        place = {"seed": DRAWS, "position": picture.position}
        drawn = random_noise(shape, **place, stream=POSTERIOR_STREAM)
        latents.append((posterior.mean[0] + posterior.std[0] * drawn - vae.shift_factor) * vae.scaling_factor)
        noises.append(sample_noise(shape, **place))
    model_input, noise = torch.stack(latents), torch.stack(noises)
    with torch.no_grad():
        captions = [picture.caption for picture in pictures]
        prompt_embeds, pooled, text_ids = pipeline.encode_prompt(captions, max_sequence_length=16)
    sigmas = torch.tensor([task.objective.sigma(picture, seed=DRAWS) for picture in pictures]).view(-1, 1, 1, 1)
    noisy = (1.0 - sigmas) * model_input + sigmas * noise
    count, channels, height, width = model_input.shape
    guidance = torch.full((count,), config.training_guidance) if config.network.guidance_embeds else None
    answer = network(
        hidden_states=pipeline._pack_latents(noisy, count, channels, height, width),
        timestep=sigmas.flatten(),
        guidance=guidance,
        pooled_projections=pooled,
        encoder_hidden_states=prompt_embeds,
        txt_ids=text_ids,
        img_ids=pipeline._prepare_latent_image_ids(count, height // 2, width // 2, "cpu", torch.float32),
        return_dict=False,
    )[0]
    answer = pipeline._unpack_latents(answer, height * 8, width * 8, 8)
    loss = ((answer.float() - (noise - model_input).float()) ** 2).reshape(count, -1).mean(1).mean()
    loss.backward()
    return {"loss": float(loss.detach()), "gradients": {name: p.grad for name, p in network.named_parameters()}}


@pytest.mark.parametrize("guided", [True, False], ids=["dev", "schnell"])
def test_loss_and_gradients_of_one_process(world: Path, guided: bool) -> None:
    config = tiny_flux.tiny_config(world)
    if not guided:
        config.model.config.network.guidance_embeds, config.model.config.training_guidance = False, 1.0
    task = make_task(config)
    pictures = video_frames(task)
    step = forward_backward(StepInputs(0, [pictures]), task, seed=DRAWS)
    judge = step_of_diffusers(world, task, pictures)
    assert step.loss == pytest.approx(judge["loss"], rel=1e-5)
    own = {name: parameter.grad for name, parameter in native_parameters(task.model.network).items()}
    assert own.keys() == judge["gradients"].keys()
    for name, gradient in judge["gradients"].items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(own[name].double(), gradient.double(), rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("network", "count"),
    [(flux_dev(), 11_901_408_320), (flux_schnell(), 11_891_178_560), (tiny(), 80_592)],
    ids=["dev", "schnell", "tiny"],
)
def test_names_and_counts_of_the_networks(network: NetworkConfig, count: int) -> None:
    from diffusers import FluxTransformer2DModel

    model = FluxGenerator(FluxGenerator.Config(network=network), device="meta")
    with torch.device("meta"):
        judge = FluxTransformer2DModel(**asdict(network))
    own = {name: parameter.shape for name, parameter in model.network.named_parameters()}
    assert own == {name: parameter.shape for name, parameter in judge.named_parameters()}
    assert model.config.count_parameters() == sum(shape.numel() for shape in own.values()) == count
