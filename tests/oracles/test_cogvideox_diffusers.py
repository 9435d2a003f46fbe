"""A step of ours against the training formula that diffusers documents: loss and gradients, on one and two ranks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import cogvideox_ranks
import pytest
import tiny_cogvideox
import torch
from launch import launch

from worldsmith.distributed.world import World
from worldsmith.objectives.noise_schedule import POSTERIOR_STREAM, random_noise, sample_noise

RECIPES = ["cogvideox_2b_tiny", "cogvideox_5b_tiny"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_cogvideox.make_world(tmp_path_factory.mktemp("cogvideox"), clips=12)


def step_of_diffusers(world: Path, config: Any) -> dict[str, Any]:
    """With its pipeline's parts and its scheduler's velocity; only the random numbers are ours."""
    from diffusers import AutoencoderKLCogVideoX, CogVideoXDPMScheduler, CogVideoXPipeline, CogVideoXTransformer3DModel
    from transformers import AutoTokenizer, T5EncoderModel

    task = cogvideox_ranks.make_task(config, World())
    clips, folder, seed = cogvideox_ranks.clips_of(config), world / "pipeline", cogvideox_ranks.DRAWS
    network = CogVideoXTransformer3DModel(**asdict(config.model.config.network))
    network.load_state_dict({name: p.detach() for name, p in task.model.network.named_parameters()}, strict=True)
    scheduler = CogVideoXDPMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", prediction_type="v_prediction",
        rescale_betas_zero_snr=True, snr_shift_scale=config.objective.shift_scale, timestep_spacing="trailing",
    )  # fmt: skip
    pipeline = CogVideoXPipeline(
        AutoTokenizer.from_pretrained(folder / "tokenizer"), T5EncoderModel.from_pretrained(folder / "text_encoder"),
        AutoencoderKLCogVideoX.from_pretrained(folder / "vae"), network, scheduler,
    )  # fmt: skip
    latents, noises = [], []
    for clip in clips:
        with torch.no_grad():
            posterior = pipeline.vae.encode(clip.video[None].float() / 127.5 - 1).latent_dist
        shape = posterior.mean.shape[1:]
        drawn = random_noise(shape, seed=seed, position=clip.position, stream=POSTERIOR_STREAM)
        latents.append((posterior.mean[0] + posterior.std[0] * drawn) * pipeline.vae.config.scaling_factor)
        noises.append(sample_noise(shape, seed=seed, position=clip.position))
    x0, noise = (torch.stack(values).transpose(1, 2) for values in (latents, noises))  # frames before channels
    text = pipeline._get_t5_prompt_embeds([clip.caption for clip in clips], max_sequence_length=16)
    text = text * torch.tensor([bool(clip.caption) for clip in clips])[:, None, None]
    timesteps = torch.tensor([task.objective.timestep(clip.position, seed=seed) for clip in clips])
    rotary = None
    if network.config.use_rotary_positional_embeddings:
        rotary = pipeline._prepare_rotary_positional_embeddings(64, 64, x0.shape[1], torch.device("cpu"))
    noisy = scheduler.add_noise(x0, noise, timesteps)
    answer = network(noisy, text, timesteps, image_rotary_emb=rotary).sample
    clean = scheduler.get_velocity(answer, noisy, timesteps)
    weights = (1 / (1 - scheduler.alphas_cumprod[timesteps])).view(-1, 1, 1, 1, 1)
    loss = (weights * (clean - x0) ** 2).flatten(1).mean(1).mean()
    loss.backward()
    return {"loss": float(loss.detach()), "gradients": {name: p.grad for name, p in network.named_parameters()}}


def require_equal(own: dict[str, Any], judge: dict[str, Any]) -> None:
    assert own["loss"] == pytest.approx(judge["loss"], rel=1e-5)
    assert own["gradients"].keys() == judge["gradients"].keys()
    for name, gradient in judge["gradients"].items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(own["gradients"][name].double(), gradient.double(), rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("recipe", RECIPES)
def test_loss_and_gradients_of_one_process(world: Path, recipe: str) -> None:
    config = tiny_cogvideox.tiny_config(world, recipe)
    own = cogvideox_ranks.run_step(config, World())
    assert not own["sharded"]
    require_equal(own, step_of_diffusers(world, config))


@pytest.mark.slow
def test_loss_and_gradients_of_two_ranks(world: Path, tmp_path: Path) -> None:
    launch(Path(cogvideox_ranks.__file__), 2, [str(world), str(tmp_path), *RECIPES])
    for recipe in RECIPES:
        own = torch.load(tmp_path / f"{recipe}.2.pt")
        assert own["sharded"]
        require_equal(own, step_of_diffusers(world, tiny_cogvideox.tiny_config(world, recipe)))
