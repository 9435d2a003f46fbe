"""Sampling: packing changes nothing, conditions stay, texts are those of training, impossible requests are refused."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from sampling import beginning
from tiny_generator import WIDER, generator_config
from torch.nn import functional

from worldsmith.families.cosmos3.model import Cosmos3Defaults, Cosmos3Generator, seeded_noise
from worldsmith.families.diffusers_pipeline.sampling import SchedulerSolver
from worldsmith.families.wan.model import WanDefaults
from worldsmith.sampling.generate_videos import generate, generate_latents
from worldsmith.sampling.requests import GenerationRequest, conditional_text, fit, unconditional_text

SETTINGS: dict[str, Any] = {"steps": 4, "guidance": 3.0, "shift": 3.0}
REQUEST = GenerationRequest(prompt="A red square.", height=64, width=64, num_frames=9, fps=8.0, seed=1)


@pytest.fixture(scope="module")
def generator() -> Cosmos3Generator:
    config = generator_config(**WIDER, initializer_range=0.2)
    return Cosmos3Generator(config, seed=0)


def test_a_result_does_not_depend_on_its_neighbours(generator: Cosmos3Generator) -> None:
    """Requests of different size, length, rate and condition: all in one pack, one by one, and cut by a token limit."""
    clip = torch.randint(0, 256, (3, 5, 80, 70), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    requests = [
        REQUEST,
        replace(REQUEST, prompt="A much longer prompt about a green triangle that drifts upward.", width=96, fps=24.0),
        replace(REQUEST, condition=clip, condition_frames=2, seed=5, num_frames=17),
        replace(REQUEST, condition=clip[:, :1], condition_frames=1, negative_prompt="blurry", height=32, width=48),
    ]
    together = generate_latents(generator, requests, **SETTINGS)
    alone = [generate_latents(generator, [request], **SETTINGS)[0] for request in requests]
    cut = generate_latents(generator, requests, max_tokens=150, **SETTINGS)
    for a, b, c in zip(together, alone, cut):
        assert (a - b).abs().max() < 1e-4
        assert (a - c).abs().max() < 1e-4
    assert (together[0] - generate_latents(generator, [replace(REQUEST, seed=2)], **SETTINGS)[0]).abs().max() > 0.1


def test_packs_stay_under_the_token_limit_and_hold_both_branches(
    generator: Cosmos3Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many prompts share a forward pass as far as the limit allows; guidance 1 packs no unconditional branch."""
    packs = []
    original = generator.pack
    monkeypatch.setattr(generator, "pack", lambda layouts: packs.append(original(layouts)) or packs[-1])
    requests = [replace(REQUEST, seed=i) for i in range(5)]
    generate_latents(generator, requests, **SETTINGS)
    assert [len(pack.layouts) for pack in packs] == [10]
    size = packs[0].num_tokens // 5
    packs.clear()
    generate_latents(generator, requests, max_tokens=2 * size, **SETTINGS)
    assert [len(pack.layouts) for pack in packs] == [4, 4, 2]
    assert all(pack.num_tokens <= 2 * size for pack in packs)
    packs.clear()
    generate_latents(generator, requests, **{**SETTINGS, "guidance": 1.0})
    assert [len(pack.layouts) for pack in packs] == [5]


def test_guidance_one_is_the_conditional_branch(generator: Cosmos3Generator) -> None:
    """v = u + g(c - u): g = 1 without the second branch equals g just above 1 with it; larger g moves away."""
    one = generate_latents(generator, [REQUEST], **{**SETTINGS, "guidance": 1.0})[0]
    near = generate_latents(generator, [REQUEST], **{**SETTINGS, "guidance": 1.0 + 1e-6})[0]
    far = generate_latents(generator, [REQUEST], **{**SETTINGS, "guidance": 5.0})[0]
    assert (one - near).abs().max() < 1e-4 < 1e-2 < (one - far).abs().max()


def test_clean_frames_are_those_of_the_whole_clip(generator: Cosmos3Generator) -> None:
    """The condition's latents equal the first ones of the whole clip (its last frame repeated) and stay to the end."""
    clip = torch.randint(0, 256, (3, 5, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for frames, opening in ((1, clip[:, :1]), (2, clip)):
        repeated = torch.cat((opening, opening[:, -1:].expand(-1, 9 - opening.shape[1], -1, -1)), dim=1)
        expected = generator.encode(repeated)[:, :frames]
        request = replace(REQUEST, condition=clip, condition_frames=frames)
        start = beginning(generator, request, **SETTINGS).state
        assert (start[:, :frames] - expected).abs().max() < 1e-5
        assert torch.equal(start[:, frames:], seeded_noise(1, tuple(start.shape))[:, frames:])
        assert torch.equal(generate_latents(generator, [request], **SETTINGS)[0][:, :frames], start[:, :frames])


def test_video_has_the_asked_size_and_frames_are_rounded_up(
    generator: Cosmos3Generator, caplog: pytest.LogCaptureFixture
) -> None:
    """7 frames become 9, the log says so, and the video is uint8 [3, T, H, W]."""
    with caplog.at_level(logging.WARNING):
        video = generate(generator, [replace(REQUEST, num_frames=7, width=96)], **SETTINGS)[0]
    assert video.shape == (3, 9, 64, 96)
    assert video.dtype == torch.uint8
    assert "num_frames 7 is not 4k+1; 9 frames" in caplog.text


def test_noise_is_a_function_of_seed_and_shape_alone() -> None:
    """Same seed, same bits, whatever torch's global generator does; the values are Philox's, as recorded here."""
    torch.manual_seed(1)
    first = seeded_noise(7, (48, 3, 4, 4))
    torch.manual_seed(2)
    assert torch.equal(first, seeded_noise(7, (48, 3, 4, 4)))
    assert not torch.equal(first, seeded_noise(8, (48, 3, 4, 4)))
    assert abs(first.mean()) < 0.1
    assert abs(first.std() - 1) < 0.05


def test_progress_reaches_the_end(generator: Cosmos3Generator) -> None:
    """(done, total) rises to the number of request steps over all packs."""
    seen: list[tuple[int, int]] = []
    requests = [REQUEST] * 3
    generate_latents(generator, requests, max_tokens=1, progress=lambda *step: seen.append(step), **SETTINGS)
    assert seen == [(done, 12) for done in range(1, 13)]


def test_texts_are_those_of_training() -> None:
    """Plain prompts get a period, suffix and sentences; structured ones nothing; dropped ones what training showed."""
    plain, structured = REQUEST, replace(REQUEST, prompt=json.dumps({"subjects": []}))
    bare = Cosmos3Defaults()
    full = Cosmos3Defaults(append_duration_fps=True, append_resolution=True, caption_suffix="Cartoon.")
    sentences = "The video is 1.1 seconds long and is of 8 FPS. This video is of 64x64 resolution."
    assert conditional_text(plain, bare) == "A red square."
    assert conditional_text(replace(plain, prompt="A red square.. "), bare) == "A red square."
    assert conditional_text(plain, full) == f"A red square. Cartoon. {sentences}"
    assert conditional_text(structured, full) == structured.prompt
    assert conditional_text(replace(plain, prompt="{not json"), bare) == "{not json."
    assert unconditional_text(plain, full) == ""
    keeps = replace(full, unconditional_keeps_metadata=True)
    assert unconditional_text(plain, keeps) == sentences
    assert unconditional_text(structured, keeps) == ""
    assert unconditional_text(replace(plain, negative_prompt="blurry"), keeps) == "blurry"


def test_metadata_are_filled_into_structured_prompts() -> None:
    """Keys that are there keep their place and get what is generated, new ones go last; an image has no duration."""
    known = Cosmos3Defaults(structured_metadata=True, append_duration_fps=True, append_resolution=True)
    caption = {"fps": 30, "subjects": ["ü"], "duration": "9s"}
    request = replace(REQUEST, prompt=json.dumps(caption), num_frames=61, fps=24.0, width=96)
    expected = {"fps": 24.0, "subjects": ["ü"], "duration": "2s", "resolution": {"H": 64, "W": 96}}
    assert conditional_text(request, known) == json.dumps({**expected, "aspect_ratio": "4,3"})
    assert "\\u00fc" in conditional_text(request, known)
    picture = json.loads(conditional_text(replace(request, num_frames=1), known))
    assert list(picture) == ["subjects", "resolution", "aspect_ratio"]
    assert conditional_text(request, Cosmos3Defaults()) == request.prompt
    assert conditional_text(replace(request, structured_metadata=False), known) == request.prompt
    asked = conditional_text(replace(request, structured_metadata=True), Cosmos3Defaults())
    assert asked == conditional_text(request, known)
    plain = conditional_text(REQUEST, known)
    assert plain == "A red square. The video is 1.1 seconds long and is of 8 FPS. This video is of 64x64 resolution."


def test_prompts_are_never_cut(generator: Cosmos3Generator) -> None:
    """Neither the prompt nor the negative one: without its end a text is no turn of the chat any more."""
    whole = len(beginning(generator, REQUEST, **SETTINGS).conditional.text_ids)
    short = Cosmos3Generator(generator.config, seed=0, defaults=Cosmos3Defaults(max_caption_tokens=whole))
    assert len(beginning(short, REQUEST, **SETTINGS).conditional.text_ids) == whole
    for request in (
        replace(REQUEST, prompt="A red square that goes on and on."),
        replace(REQUEST, negative_prompt="blurry, dull, grey and of a low quality, with a text"),
    ):
        with pytest.raises(ValueError, match=rf"has \d+ tokens, but the model was trained with at most {whole} "):
            beginning(short, request, **SETTINGS)


def test_resize_covers_and_cuts_the_centre() -> None:
    """A wide picture loses its sides, a tall one its top and bottom; the right size is left alone."""
    wide = torch.zeros(3, 1, 20, 60, dtype=torch.uint8)
    wide[:, :, :, 20:40] = 200
    assert (fit(wide, 40, 40)[:, :, :, 3:-3] == 200).all()
    assert fit(wide, 40, 40).shape == (3, 1, 40, 40)
    tall = wide.transpose(2, 3)
    assert (fit(tall, 40, 40)[:, :, 3:-3] == 200).all()
    noise = torch.randint(0, 256, (3, 2, 20, 60), dtype=torch.uint8)
    assert torch.equal(fit(noise, 20, 60), noise)


def test_conditions_are_scaled_as_the_published_sampling_does_it() -> None:
    """Sizes rounded up, antialiased bilinear on RGB as float32, rounded: bit for bit."""
    noise = torch.randint(0, 256, (3, 2, 50, 70), dtype=torch.uint8)
    for height, width in ((32, 48), (64, 96), (80, 48)):
        scale = max(height / 50, width / 70)
        size = (math.ceil(scale * 50), math.ceil(scale * 70))
        scaled = functional.interpolate(
            noise.movedim(1, 0).float(), size=size, mode="bilinear", align_corners=False, antialias=True
        )
        top, left = round((size[0] - height) / 2), round((size[1] - width) / 2)
        expected = scaled[:, :, top : top + height, left : left + width].round().clamp(0, 255).to(torch.uint8)
        assert torch.equal(fit(noise, height, width), expected.movedim(0, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"height": 60}, "height must be a multiple of 16, found 60; the nearest is 64"),
        ({"width": 0}, "width must be a multiple of 16, found 0; the nearest is 16"),
        ({"num_frames": 0}, "num_frames must be positive, found 0"),
        ({"fps": 0.0}, r"fps must be from 0\.01 to 1000, found 0"),
        ({"seed": -1}, "seed must not be negative"),
        ({"negative_prompt": "a \ud800 b"}, "half of a surrogate pair"),
        ({"condition_frames": 1}, "there is no condition"),
        ({"condition": torch.zeros(3, 1, 8, 8, dtype=torch.uint8)}, "set both or neither"),
        ({"condition": torch.zeros(3, 1, 8, 8), "condition_frames": 1}, "expected uint8 conditioning frames"),
        ({"condition": torch.zeros(3, 1, 8, 8, dtype=torch.uint8), "condition_frames": 2}, "need 5 frames of video"),
        (
            {"condition": torch.zeros(3, 9, 8, 8, dtype=torch.uint8), "condition_frames": 3},
            "leave no frame to generate",
        ),
    ],
)
def test_impossible_requests_are_refused(generator: Cosmos3Generator, change: dict[str, Any], message: str) -> None:
    """The error names the prompt, the value and what would work."""
    with pytest.raises(ValueError, match=message) as error:
        generate_latents(generator, [replace(REQUEST, **change)], **SETTINGS)
    assert "'A red square.'" in str(error.value)


def test_defaults_of_the_model_fill_what_the_call_leaves_open(generator: Cosmos3Generator) -> None:
    """steps, guidance and shift come from the model; a shift that nobody knows is an error."""
    with pytest.raises(ValueError, match="noise schedule is unknown"):
        generate_latents(generator, [REQUEST], steps=2)
    known = Cosmos3Generator(generator.config, seed=0, defaults=Cosmos3Defaults(steps=4, guidance=3.0, shift=3.0))
    assert torch.equal(generate_latents(known, [REQUEST])[0], generate_latents(generator, [REQUEST], **SETTINGS)[0])


@pytest.mark.parametrize(("steps", "shift"), [(1, 3.0), (50, 3.0), (400, 5.0), (1000, 1.0)])
def test_unipc_solves_a_straight_flow_in_any_number_of_steps(steps: int, shift: float) -> None:
    """Many steps begin with equal timesteps, because timesteps are integers."""
    scheduler = WanDefaults().make_scheduler(shift)
    scheduler.set_timesteps(steps)
    solver = SchedulerSolver(scheduler, torch.Generator().manual_seed(0))
    target, noise = solver.noise((4, 1, 2, 2)), solver.noise((4, 1, 2, 2))
    state = torch.lerp(target, noise, scheduler.sigmas[0])
    for sigma in scheduler.sigmas[:-1]:
        state = solver.step((state - target) / sigma, state)
    torch.testing.assert_close(state, target)
