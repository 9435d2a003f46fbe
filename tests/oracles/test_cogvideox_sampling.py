"""Sampling CogVideoX equals diffusers' pipelines from a generator of the same seed, latents and videos."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_cogvideox
import torch
from diffusers import CogVideoXImageToVideoPipeline, CogVideoXPipeline, CogVideoXVideoToVideoPipeline

from worldsmith.families.cogvideox.architecture import ImageConfig
from worldsmith.families.cogvideox.model import CogVideoXDefaults, CogVideoXGenerator, dynamic_scale
from worldsmith.families.diffusers_pipeline.text_encoder import T5TextEncoder
from worldsmith.models.video_vae.cogvideox import CogVideoXVAE
from worldsmith.sampling.generate_videos import BranchShare, generate, generate_latents
from worldsmith.sampling.requests import GenerationRequest

STEPS, GUIDANCE = 4, 3.0
REQUEST = GenerationRequest(prompt="a red square", height=64, width=64, num_frames=9, fps=8.0, seed=3)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline")
    tiny_cogvideox.make_parts(folder)
    return folder


def make_generator(
    parts: Path, *, rotary: bool = True, dropped: Any = "zeros", image: ImageConfig | None = None, **network: Any
) -> CogVideoXGenerator:
    """Random weights of ordinary size in every parameter."""
    config = CogVideoXGenerator.Config(
        precision="float32",
        network=tiny_cogvideox.network_of(use_rotary_positional_embeddings=rotary, **network),
        image=image,
        tokenizer=CogVideoXVAE.Config(vae_path=str(parts), precision="float32"),
        text_encoder=T5TextEncoder.Config(
            path=str(parts), max_length=16, precision="float32", dropped_captions=dropped
        ),
    )
    generator = CogVideoXGenerator(config, seed=0)
    stream = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in generator.network.parameters():
            parameter.normal_(0, parameter[0].numel() ** -0.5, generator=stream)
    generator.network.eval().requires_grad_(False)
    return generator


@pytest.fixture(scope="module", params=[False, True], ids=["2b", "5b"])
def generator(request: pytest.FixtureRequest, parts: Path) -> CogVideoXGenerator:
    return make_generator(parts, rotary=request.param)


def pipeline_of(generator: CogVideoXGenerator, scheduler: str, kind: Any = CogVideoXPipeline) -> Any:
    generator.read([()])  # loads the encoder
    pipeline = kind(
        tokenizer=generator.text_encoder.tokenizer,
        text_encoder=generator.text_encoder.encoder,
        vae=generator.vae.library_model,
        transformer=generator.network,
        scheduler=generator.defaults.make_scheduler(scheduler),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def drawn(pipeline: Any, request: GenerationRequest, *, output_type: str = "latent", **given: Any) -> torch.Tensor:
    """The pipeline's video, or its latents [C, t, h, w]; `...` is not said."""
    arguments = {
        "prompt": request.prompt,
        "height": request.height,
        "width": request.width,
        "num_frames": request.num_frames,
        "num_inference_steps": STEPS,
        "guidance_scale": GUIDANCE,
        "max_sequence_length": 16,
        "generator": torch.Generator().manual_seed(request.seed),
        "output_type": output_type,
        **given,
    }
    arguments = {name: value for name, value in arguments.items() if value is not ...}
    frames = pipeline(**arguments).frames[0]
    return frames.transpose(0, 1) if output_type == "latent" else torch.as_tensor(frames)


@pytest.mark.parametrize("dynamic", ["off", "by_timestep"])
@pytest.mark.parametrize("scheduler", ["ddim", "dpm"])
def test_final_latents_equal_the_pipeline(generator: CogVideoXGenerator, scheduler: str, dynamic: str) -> None:
    settings = {"steps": STEPS, "guidance": GUIDANCE, "scheduler": scheduler, "dynamic_guidance": dynamic}
    request = replace(REQUEST, negative_prompt="")  # the empty text, encoded, as the pipeline has it
    ours = generate_latents(generator, [request], **settings)[0]
    theirs = drawn(pipeline_of(generator, scheduler), request, use_dynamic_cfg=dynamic != "off")
    assert ours.shape == (4, 3, 8, 8)
    assert (ours - theirs).abs().max() < 1e-4
    assert (ours - generate_latents(generator, [REQUEST], **settings)[0]).abs().max() > 1e-2, "zeros are another branch"


def test_dropped_captions_are_zeros_and_videos_are_the_pipelines(generator: CogVideoXGenerator) -> None:
    """Without a negative prompt guidance moves away from zeros, and pixels are equal to a grey level."""
    zeros = torch.zeros(1, 16, 32)
    pipeline = pipeline_of(generator, "ddim")
    texts = {"prompt": None, "prompt_embeds": pipeline.encode_prompt(REQUEST.prompt, "", max_sequence_length=16)[0]}
    theirs = drawn(pipeline, REQUEST, output_type="pt", negative_prompt_embeds=zeros, **texts)
    ours = generate(generator, [REQUEST], steps=STEPS, guidance=GUIDANCE, scheduler="ddim")[0]
    assert ours.shape == (3, 9, 64, 64)
    assert (ours.transpose(0, 1).float() - theirs * 255).abs().max() <= 1


def test_an_encoded_empty_text_where_training_dropped_so(parts: Path) -> None:
    generator = make_generator(parts, rotary=False, dropped="encoded")
    settings = {"steps": 2, "guidance": GUIDANCE, "scheduler": "ddim"}
    ours = generate_latents(generator, [REQUEST, replace(REQUEST, negative_prompt="blue")], **settings)
    pipeline = pipeline_of(generator, "ddim")
    for found, negative in zip(ours, (None, "blue"), strict=True):
        assert (found - drawn(pipeline, REQUEST, negative_prompt=negative, num_inference_steps=2)).abs().max() < 1e-4


def test_neighbours_of_other_shapes_change_nothing(generator: CogVideoXGenerator) -> None:
    """Draws depend on the seed of a request alone; one frame, another size and length, and guidance 1."""
    one, wide = replace(REQUEST, num_frames=1, seed=4), replace(REQUEST, width=96, height=48, num_frames=17, seed=5)
    requests = [REQUEST, one, replace(REQUEST, seed=6, prompt="green"), *([wide] if has_rotary(generator) else [])]
    for guidance in (1.0, GUIDANCE):
        settings = {"steps": 3, "guidance": guidance, "scheduler": "dpm"}
        together = generate_latents(generator, requests, **settings)
        for request, found in zip(requests, together, strict=True):
            alone = generate_latents(generator, [request], **settings)[0]
            assert (found - alone).abs().max() < 1e-4
    assert (together[0] - together[2]).abs().max() > 1e-2


def test_branches_of_guidance_on_two_processes_give_the_same(generator: CogVideoXGenerator) -> None:
    """Each computes one branch of all requests; here they are two threads that hand their answers over."""
    requests, settings = [REQUEST, replace(REQUEST, seed=9, num_frames=1)], {"steps": 3, "scheduler": "dpm"}
    alone = generate_latents(generator, requests, **settings)
    meet, handed = threading.Barrier(2, timeout=60), [torch.empty(0)] * 2

    def gather(branch: int, answers: torch.Tensor) -> list[torch.Tensor]:
        meet.wait()
        handed[branch] = answers
        meet.wait()
        return list(handed)

    def half(branch: int) -> list[torch.Tensor]:
        return generate_latents(generator, requests, share=BranchShare(branch, partial(gather, branch)), **settings)

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(half, (0, 1)):
            assert max(float((one - other).abs().max()) for one, other in zip(found, alone, strict=True)) < 1e-4


LATER: dict[str, Any] = {"patch_size_t": 2, "patch_bias": False}
"""CogVideoX 1.5."""
IMAGE: dict[str, Any] = {"in_channels": 8, "image": ImageConfig()}


@pytest.mark.parametrize(
    "network",
    [{**IMAGE, "use_learned_positional_embeddings": True}, {**IMAGE, **LATER, "ofs_embed_dim": 8}, LATER],
    ids=["5b-i2v", "1.5-i2v", "1.5"],
)
def test_images_and_whole_tokens_of_frames_equal_the_pipeline(parts: Path, network: dict[str, Any]) -> None:
    """The image is encoded alone; a latent frame in front makes tokens of two whole, and is dropped at the end."""
    generator = make_generator(parts, **network)
    picture = torch.randint(0, 256, (3, 1, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    given = {"condition": picture, "condition_frames": 1} if "image" in network else {}
    settings = {"steps": STEPS, "guidance": GUIDANCE, "scheduler": "dpm", "dynamic_guidance": "by_timestep"}
    request = replace(REQUEST, negative_prompt="", **given)
    ours = generate_latents(generator, [request, replace(request, seed=5)], **settings)[0]
    if "image" in network:
        pipeline = pipeline_of(generator, "dpm", CogVideoXImageToVideoPipeline)
        theirs = drawn(pipeline, request, use_dynamic_cfg=True, image=picture[:, 0][None] / 255)
        with pytest.raises(ValueError, match="this network supports image2video"):
            generate_latents(generator, [REQUEST], **settings)
    else:
        theirs = drawn(pipeline_of(generator, "dpm"), request, use_dynamic_cfg=True)
    assert ours.shape == (4, 3, 8, 8)
    assert (ours - theirs[:, theirs.shape[1] - 3 :]).abs().max() < 1e-4


@pytest.mark.parametrize("dynamic", ["off", "by_timestep"])
@pytest.mark.parametrize("scheduler", ["ddim", "dpm"])
def test_a_video_made_anew_equals_the_pipeline(generator: CogVideoXGenerator, scheduler: str, dynamic: str) -> None:
    clip = torch.randint(0, 256, (3, 9, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    request = replace(REQUEST, condition=clip, negative_prompt="")
    settings = {"steps": STEPS, "guidance": GUIDANCE, "scheduler": scheduler, "dynamic_guidance": dynamic}
    ours = generate_latents(generator, [request], strength=0.5, **settings)[0]
    pipeline = pipeline_of(generator, scheduler, CogVideoXVideoToVideoPipeline)
    frames = clip.permute(1, 0, 2, 3).float() / 255
    theirs = drawn(pipeline, request, video=frames, strength=0.5, use_dynamic_cfg=dynamic != "off", num_frames=...)
    assert (ours - theirs).abs().max() < 1e-4


def test_guidance_that_changes_is_that_of_the_published_sampler() -> None:
    """Scale 6 over 50 steps at timesteps 999, 979, …: 1 + 6·(1 - cos(π·((50 - t)/50)⁵))/2."""
    timesteps = CogVideoXDefaults().make_scheduler("dpm")
    timesteps.set_timesteps(50)
    told = timesteps.timesteps.tolist()
    assert told == [999 - 20 * step for step in range(50)]
    scales = [dynamic_scale(6, timestep, 50) for timestep in told]
    first = [2.291, 2.544, 6.974, 6.420, 2.788, 4.272, 1.038, 4.170, 1.618, 6.983]
    assert scales[:10] == pytest.approx(first, abs=6e-4)
    assert scales[-4:] == pytest.approx([1.064, 1.0, 1.0, 1.123], abs=6e-4)
    growing = [dynamic_scale(6, left, 50) for left in range(50, 0, -1)]
    assert growing == sorted(growing)
    assert (growing[0], growing[-1] > 6) == (1.0, True)


def has_rotary(generator: CogVideoXGenerator) -> bool:
    return generator.config.network.use_rotary_positional_embeddings


@pytest.mark.parametrize("steps", [10, 20, 25, 30, 40, 50, 100, 200])
def test_timesteps_are_those_of_sat(steps: int) -> None:
    """⌊999·(1 - i/N)⌋; where 1000 is no multiple of N, diffusers rounds some of them otherwise."""
    scheduler = CogVideoXDefaults().make_scheduler("ddim")
    scheduler.set_timesteps(steps)
    theirs = [999 * (steps - step) // steps for step in range(steps)]
    apart = [abs(one - other) for one, other in zip(scheduler.timesteps.tolist(), theirs, strict=True) if one != other]
    assert apart == ([1] * 7 if steps == 30 else [])
