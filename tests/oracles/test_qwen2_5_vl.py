"""Qwen2.5-VL, the network of Cosmos-Reason1: transformers' own processor, positions and network are the judges."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from judge_processor import judge_of_frames, judge_processor_25
from PIL import Image
from reasoners import LIMITS_2_5, VIDEOS_2_5, model_config, qwen2_5_config, write_qwen2_5
from transformers import AutoModelForImageTextToText

from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.conversation import Part, say
from worldsmith.data.conversations.media.image_patches import read_video
from worldsmith.data.conversations.media.media_processor import MediaProcessor
from worldsmith.data.stream.errors import DataError
from worldsmith.data.video_writer import write_video
from worldsmith.families.vision_language.inputs import positions_of

RELEASED = {**LIMITS_2_5, "min_pixels": 3136, "max_pixels": 12845056}
"""What the released models state of images; they have no file for videos."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen2_5") / "model"
    write_qwen2_5(path)
    return path


def write_media_folder(path: Path, images: dict[str, Any], videos: dict[str, Any] | None) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    (path / "preprocessor_config.json").write_text(json.dumps(images))
    if videos is not None:
        (path / "video_preprocessor_config.json").write_text(json.dumps(videos))
    return path


def test_images_of_14_pixels_and_their_own_colours(folder: Path, tmp_path: Path) -> None:
    source = str(tmp_path / "a.png")
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (100, 70, 3), np.uint8)).save(source)
    turns = (say("user", "Is it ", Part("image", source=source), "?"), say("assistant", "no"))
    asked = [
        {"role": "user", "content": [
            {"type": "text", "text": "Is it "}, {"type": "image", "image": source}, {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": "no"},
    ]  # fmt: skip
    expected = judge_processor_25(folder).apply_chat_template(
        asked, tokenize=True, return_dict=True, processor_kwargs={"return_tensors": "pt"}
    )
    processor = ChatProcessor.Config().build(folder=folder)
    sample = processor.encode(turns)
    assert torch.equal(sample.input_ids, expected["input_ids"][0])
    assert torch.equal(sample.token_types, expected["mm_token_type_ids"][0])
    assert torch.equal(sample.image_grids, expected["image_grid_thw"])
    assert sample.image_patches is not None
    assert sample.image_patches.shape[1] == 3 * 2 * 14 * 14
    assert processor.media is not None
    assert torch.allclose(processor.media.normalize(sample.image_patches, "image"), expected["pixel_values"], atol=1e-6)
    assert sample.video_seconds is None


@pytest.mark.parametrize(("count", "fps"), [(5, 4.0), (8, 4.0), (6, 30.0)])
def test_videos_whose_times_are_positions(count: int, fps: float, folder: Path, tmp_path: Path) -> None:
    """Ids, patches, seconds of a grid's time, and the positions that follow from them, odd numbers of frames too."""
    path = str(tmp_path / "a.mp4")
    write_video(Path(path), np.random.default_rng(0).integers(0, 256, (48, 64, 96, 3), np.uint8), fps)
    turns = (say("user", "Look: ", Part("video", source=path), "Plausible?"), say("assistant", "3"))
    processor = ChatProcessor.Config(media=MediaProcessor.Config(nframes=count)).build(folder=folder)
    assert processor.media is not None
    plan = processor.media.plan_video(path)
    frames = read_video(path, plan.info, plan.indices, plan.size)
    judge = judge_processor_25(folder, fps=fps, indices=[plan.indices], total=48)
    text = judge.apply_chat_template(
        [
            {"role": "user", "content": [
                {"type": "text", "text": "Look: "}, {"type": "video"}, {"type": "text", "text": "Plausible?"}]},
            {"role": "assistant", "content": "3"},
        ],
        tokenize=False,
    )  # fmt: skip
    expected = judge(text=[text], videos=[frames], return_tensors="pt")
    sample = processor.encode(turns)
    assert torch.equal(sample.input_ids, expected["input_ids"][0])
    assert torch.equal(sample.token_types, expected["mm_token_type_ids"][0])
    assert torch.equal(sample.video_grids, expected["video_grid_thw"])
    assert torch.equal(sample.video_patches, expected["pixel_values_videos"])
    assert torch.equal(sample.video_seconds, torch.as_tensor(expected["second_per_grid_ts"]))
    written = processor.tokenizer.decode(sample.input_ids)
    video = "<|video_pad|>" * plan.tokens
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    shown = f"<|im_start|>user\nLook: <|vision_start|>{video}<|vision_end|>Plausible?<|im_end|>\n"
    assert written == f"{system}{shown}<|im_start|>assistant\n3<|im_end|>\n"
    answer = processor.tokenizer.decode(sample.input_ids[sample.labels >= 0])
    assert answer == "3<|im_end|>"

    network = AutoModelForImageTextToText.from_config(qwen2_5_config())
    axes, _ = network.model.get_rope_index(
        expected["input_ids"],
        mm_token_type_ids=expected["mm_token_type_ids"],
        video_grid_thw=expected["video_grid_thw"],
        second_per_grid_ts=expected["second_per_grid_ts"],
    )
    found = positions_of(sample, network)
    assert torch.equal(found[1:], axes[:, 0])
    assert torch.equal(found[0], torch.arange(sample.num_tokens))
    steps = found[1][sample.token_types == 2].unique(sorted=True)
    seconds = 2 * 48 / (fps * count)
    assert (steps - steps[0]).tolist() == sorted({int(2 * seconds * time) for time in range(-(-count // 2))})


def test_a_question_is_asked_with_its_seconds(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generation gives them to transformers, which places the times of a video by them."""
    path = str(tmp_path / "a.mp4")
    write_video(Path(path), np.zeros((40, 64, 96, 3), np.uint8), 10.0)
    processor = ChatProcessor.Config().build(folder=folder)
    prompt = processor.prompt((say("user", Part("video", source=path), "Plausible?"),))
    assert processor.media is not None
    assert prompt.video_seconds is not None
    model = model_config(folder).build(seed=1)
    given: list[Any] = []
    real = model.network.model.get_rope_index

    def spy(*ids: Any, **settings: Any) -> Any:
        given.append(settings.get("second_per_grid_ts"))
        return real(*ids, **settings)

    monkeypatch.setattr(model.network.model, "get_rope_index", spy)
    model.generate([prompt, prompt], normalize=processor.media.normalize, pad_token=505, max_new_tokens=2)
    assert [found.tolist() for found in given] == [[1.0, 1.0]]


def test_the_pair_of_vision_tokens_is_the_templates(folder: Path) -> None:
    with pytest.raises(DataError, match=r"outer_vision_tokens = true: .* is a qwen2_5_vl"):
        ChatProcessor.Config(outer_vision_tokens=True).build(folder=folder)


SIZES = [(64, 96), (480, 832), (1080, 1920), (240, 320), (720, 405), (9, 300)]


@pytest.mark.parametrize("frames", [2, 7, 40, 600])
@pytest.mark.parametrize(
    "videos",
    [
        VIDEOS_2_5,
        {**VIDEOS_2_5, "cap_pixels_per_frame": True, "max_video_tokens": 300},
        {**VIDEOS_2_5, "size": {"shortest_edge": 3136, "longest_edge": 12845056}},
    ],
    ids=["small", "capped", "large"],
)
def test_frames_have_the_size_that_transformers_gives_them(frames: int, videos: dict[str, Any], tmp_path: Path) -> None:
    media = MediaProcessor.Config().build(folder=write_media_folder(tmp_path / "model", LIMITS_2_5, videos))
    for height, width in SIZES:
        assert media.video_size(frames, height, width) == judge_of_frames(height, width, frames, videos)


@pytest.mark.parametrize("frames", [2, 7, 40, 600])
def test_a_released_folder_states_no_videos_and_gets_the_budgets_of_its_training(
    frames: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """128 to 768 tokens per frame, 115,200 a video: the class of transformers with the cap of qwen-vl-utils."""
    with caplog.at_level(logging.WARNING):
        media = MediaProcessor.Config().build(folder=write_media_folder(tmp_path / "model", RELEASED, None))
    assert "has no video_preprocessor_config.json: video frames are scaled as in qwen-vl-utils" in caplog.text
    reference = {"size": {"shortest_edge": 100352, "longest_edge": 602112}, "cap_pixels_per_frame": True}
    for height, width in SIZES:
        assert media.video_size(frames, height, width) == judge_of_frames(height, width, frames, reference)
    assert media.images.max_pixels == 12845056
    assert media.videos.mean == tuple(RELEASED["image_mean"])


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_the_budgets_of_cosmos_reason1(height: int, width: int, tmp_path: Path) -> None:
    """81,920 pixels a frame, as its examples have them, and a total over all frames of a video."""
    folder = write_media_folder(tmp_path / "model", RELEASED, {**VIDEOS_2_5, "size": {
        "shortest_edge": 3136, "longest_edge": 12845056}, "cap_pixels_per_frame": True})  # fmt: skip
    rows, columns = MediaProcessor.Config(max_pixels=81_920).build(folder=folder).video_size(8, height, width)
    assert rows % 28 == columns % 28 == 0
    settings = {"size": {"shortest_edge": 3136, "longest_edge": 81_920}}
    assert (rows, columns) == judge_of_frames(height, width, 8, settings)
    shared = MediaProcessor.Config(total_pixels=2_000_000).build(folder=folder).video_size(20, height, width)
    assert shared == judge_of_frames(height, width, 20, {"size": {"shortest_edge": 3136, "longest_edge": 100_000}})
