"""A step of ours against the training formula that diffusers documents: loss and gradients, on one and two ranks."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cogvideox_ranks
import pytest
import tiny_cogvideox
import torch
from launch import launch

from worldsmith.distributed.world import World
from worldsmith.families.cogvideox.task import DROPOUT_STREAM, IMAGE_STREAM, LEVEL_STREAM, PIXEL_STREAM
from worldsmith.objectives.noise_schedule import POSTERIOR_STREAM, random_noise, random_stream, sample_noise

VIDEOS = ["cogvideox_2b_tiny", "cogvideox_5b_tiny", "cogvideox1_5_5b_tiny"]
IMAGES = ["cogvideox_5b_i2v_tiny", "cogvideox1_5_5b_i2v_tiny"]
RECIPES = [*VIDEOS[:2], *IMAGES, pytest.param(VIDEOS[2], marks=pytest.mark.slow)]
TWO_RANKS = ["cogvideox_2b_tiny", "cogvideox_5b_i2v_tiny"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a second VAE whose latents of images are divided by the scale, as that of CogVideoX 1.5."""
    folder = tiny_cogvideox.make_world(tmp_path_factory.mktemp("cogvideox"), clips=12)
    settings = json.loads((folder / "pipeline/vae/config.json").read_text())
    shutil.copytree(folder / "pipeline/vae", folder / "inverted")
    (folder / "inverted/config.json").write_text(json.dumps({**settings, "invert_scale_latents": True}))
    return folder


def config_of(world: Path, recipe: str) -> Any:
    """Half of the images are dropped."""
    config = tiny_cogvideox.tiny_config(world, recipe)
    if recipe in IMAGES:
        config.model.config.image.dropout = 0.5
    if recipe == "cogvideox1_5_5b_i2v_tiny":
        config.model.config.tokenizer.vae_path = str(world / "inverted")
    return config


def step_of_diffusers(world: Path, config: Any, *, some_dropped: bool = True) -> dict[str, Any]:
    """With its pipeline's parts and its scheduler's velocity; only the random numbers are ours.

    Images, padding and losses are those of its example of training and of CogVideo's trainer after it.
    """
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
    vae = world / ("inverted" if config.model.config.tokenizer.vae_path.endswith("inverted") else "pipeline/vae")
    pipeline = CogVideoXPipeline(
        AutoTokenizer.from_pretrained(folder / "tokenizer"), T5EncoderModel.from_pretrained(folder / "text_encoder"),
        AutoencoderKLCogVideoX.from_pretrained(vae), network,
        scheduler,
    )  # fmt: skip
    table = dict(network.named_buffers()).get("patch_embed.pos_embedding")
    learned = network.config.use_learned_positional_embeddings
    if learned:
        table.requires_grad_()
    latents, noises = [], []
    for clip in clips:
        with torch.no_grad():
            posterior = pipeline.vae.encode(clip.video[None].float() / 127.5 - 1).latent_dist
        shape = posterior.mean.shape[1:]
        drawn = random_noise(shape, seed=seed, position=clip.position, stream=POSTERIOR_STREAM)
        x0 = (posterior.mean[0] + posterior.std[0] * drawn) * pipeline.vae.config.scaling_factor
        copies = x0.shape[1] % (network.config.patch_size_t or 1)
        latents.append(torch.cat([x0[:, :1].repeat(1, copies, 1, 1), x0], dim=1))
        noises.append(sample_noise(latents[-1].shape, seed=seed, position=clip.position))
    x0, noise = (torch.stack(values).transpose(1, 2) for values in (latents, noises))  # frames before channels
    text = pipeline._get_t5_prompt_embeds([clip.caption for clip in clips], max_sequence_length=16)
    text = text * torch.tensor([bool(clip.caption) for clip in clips])[:, None, None]
    timesteps = torch.tensor([task.objective.timestep(clip.position, seed=seed) for clip in clips])
    rotary = None
    if network.config.use_rotary_positional_embeddings:
        rotary = pipeline._prepare_rotary_positional_embeddings(64, 64, x0.shape[1], torch.device("cpu"))
    noisy = scheduler.add_noise(x0, noise, timesteps)
    states, ofs = noisy, None
    if config.model.config.image is not None:
        images = torch.stack([image_of(clip, pipeline.vae, config, seed) for clip in clips])
        assert not some_dropped or images.flatten(1).abs().amax(1).bool().tolist().count(False) in (
            1,
            2,
            3,
        )  # some are dropped
        nothing = images.new_zeros(len(clips), x0.shape[1] - 1, *images.shape[2:])
        states = torch.cat([noisy, torch.cat([images, nothing], dim=1)], dim=2)
    if network.config.ofs_embed_dim:
        ofs = x0.new_full((1,), fill_value=2.0)
    answer = network(states, text, timesteps, ofs=ofs, image_rotary_emb=rotary).sample
    clean = scheduler.get_velocity(answer, noisy, timesteps)
    weights = (1 / (1 - scheduler.alphas_cumprod[timesteps])).view(-1, 1, 1, 1, 1)
    loss = (weights * (clean - x0) ** 2).flatten(1).mean(1).mean()
    loss.backward()
    gradients = {name: p.grad for name, p in network.named_parameters()}
    if learned:
        gradients["patch_embed.pos_embedding"] = table.grad
    return {"loss": float(loss.detach()), "gradients": gradients}


def image_of(clip: Any, vae: Any, config: Any, seed: int) -> torch.Tensor:
    """The first frame's latents, frames before channels: noised in its pixels, encoded alone, perhaps dropped."""
    image = clip.video[None, :, :1].float() / 127.5 - 1
    sigma = math.exp(-3.0 + 0.5 * random_stream(seed, clip.position, LEVEL_STREAM).standard_normal())
    noise = random_noise(image.shape[1:], seed=seed, position=clip.position, stream=PIXEL_STREAM)
    with torch.no_grad():
        posterior = vae.encode(image + sigma * noise[None]).latent_dist
    drawn = random_noise(posterior.mean.shape[1:], seed=seed, position=clip.position, stream=IMAGE_STREAM)
    scale = vae.config.scaling_factor
    scale = 1 / scale if vae.config.invert_scale_latents else scale
    kept = random_stream(seed, clip.position, DROPOUT_STREAM).random() >= config.model.config.image.dropout
    return kept * scale * (posterior.mean + posterior.std * drawn)[0].transpose(0, 1)


def require_equal(own: dict[str, Any], judge: dict[str, Any]) -> None:
    assert own["loss"] == pytest.approx(judge["loss"], rel=1e-5)
    assert own["gradients"].keys() == judge["gradients"].keys()
    for name, gradient in judge["gradients"].items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(own["gradients"][name].double(), gradient.double(), rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("recipe", RECIPES)
def test_loss_and_gradients_of_one_process(world: Path, recipe: str) -> None:
    config = config_of(world, recipe)
    own = cogvideox_ranks.run_step(config, World())
    assert not own["sharded"]
    require_equal(own, step_of_diffusers(world, config))


@pytest.mark.slow
def test_loss_and_gradients_of_two_ranks(world: Path, tmp_path: Path) -> None:
    launch(Path(cogvideox_ranks.__file__), 2, [str(world), str(tmp_path), *TWO_RANKS])
    for recipe in TWO_RANKS:
        own = torch.load(tmp_path / f"{recipe}.2.pt")
        assert own["sharded"]
        require_equal(own, step_of_diffusers(world, tiny_cogvideox.tiny_config(world, recipe), some_dropped=False))
