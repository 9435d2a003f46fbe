"""A conversation as tokens and patches: transformers' Qwen3-VL processor is the judge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from judge_processor import judge_processor
from PIL import Image

from worldsmith.assets import asset_path
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.conversation import Part, Turn, say
from worldsmith.data.conversations.media.image_patches import normalize, read_video
from worldsmith.data.conversations.media.media_processor import MediaProcessor
from worldsmith.data.video_writer import write_video

FOLDER = asset_path("tiny_reasoner")


@pytest.fixture(scope="module")
def processor() -> ChatProcessor:
    return ChatProcessor.Config().build(folder=FOLDER)


def save_image(path: Path, size: tuple[int, int], seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return str(path)


def messages(turns: tuple[Turn, ...], show: Callable[[Part], object]) -> list[dict]:
    """The conversation as transformers takes it."""
    return [
        {
            "role": turn.role,
            "content": [
                {"type": "text", "text": p.text} if p.kind == "text" else {"type": p.kind, p.kind: show(p)}
                for p in turn.parts
            ],
        }
        for turn in turns
    ]


@pytest.mark.parametrize("generation_prompt", [False, True])
def test_images_at_their_places(tmp_path: Path, processor: ChatProcessor, generation_prompt: bool) -> None:
    one, other = save_image(tmp_path / "a.png", (64, 96), 1), save_image(tmp_path / "b.png", (100, 70), 2)
    turns = (
        say("system", "Answer in a word."),
        say("user", "First ", Part("image", source=one), " then ", Part("image", source=other), "\nIs it the same?"),
        say("assistant", "no"),
        say("user", Part("image", source=one), "And this?"),
    )
    if not generation_prompt:
        turns += (say("assistant", "yes, it is"),)
    expected = judge_processor(FOLDER).apply_chat_template(
        messages(turns, lambda part: part.source),
        tokenize=True,
        return_dict=True,
        add_generation_prompt=generation_prompt,
        processor_kwargs={"return_tensors": "pt"},
    )
    sample = processor.prompt(turns) if generation_prompt else processor.encode(turns)
    assert torch.equal(sample.input_ids, expected["input_ids"][0])
    assert torch.equal(sample.token_types, expected["mm_token_type_ids"][0])
    assert torch.equal(sample.image_grids, expected["image_grid_thw"])
    assert torch.equal(normalize(sample.image_patches, [0.5] * 3, [0.5] * 3), expected["pixel_values"])


@pytest.mark.parametrize("count", [5, 8])
def test_videos_with_their_times(tmp_path: Path, count: int) -> None:
    """With the outer pair of vision tokens the judge writes the very same ids; without it, these less the pair."""
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 96, 3), np.uint8)
    write_video(tmp_path / "a.mp4", pixels, 4.0)
    path = str(tmp_path / "a.mp4")
    turns = (say("user", "Look: ", Part("video", source=path), "Plausible?"), say("assistant", "3"))
    media = MediaProcessor.Config(nframes=count)
    outer = ChatProcessor.Config(media=media, outer_vision_tokens=True).build(folder=FOLDER)
    plan = outer.media.plan_video(path)
    frames = read_video(path, plan.info, plan.indices, plan.size)
    judge = judge_processor(FOLDER, fps=4.0, indices=[plan.indices])
    text = judge.apply_chat_template(messages(turns, lambda part: None), tokenize=False)
    expected = judge(text=[text], videos=[frames], return_tensors="pt")
    sample = outer.encode(turns)
    assert torch.equal(sample.input_ids, expected["input_ids"][0])
    assert torch.equal(sample.token_types, expected["mm_token_type_ids"][0])
    assert torch.equal(sample.video_grids, expected["video_grid_thw"])
    assert torch.equal(sample.video_patches, expected["pixel_values_videos"])

    inner = ChatProcessor.Config(media=media).build(folder=FOLDER).encode(turns)
    assert sample.num_tokens == inner.num_tokens + 2
    written = outer.tokenizer.decode(inner.input_ids)
    frame = f"<|vision_start|>{'<|video_pad|>' * plan.frame_tokens}<|vision_end|>"
    shown = "".join(f"<{time:.1f} seconds>{frame}" for time in plan.times)
    assert written == f"<|im_start|>user\nLook: {shown}Plausible?<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n"
    retokenized = outer.tokenizer(written, add_special_tokens=False)["input_ids"]
    assert inner.input_ids.tolist() == retokenized
