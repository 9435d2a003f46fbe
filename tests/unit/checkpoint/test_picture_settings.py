"""The preprocessor files of an export say how its run read pictures: without flags the same frames, sizes and times."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from model_folder import IMAGES, VIDEOS, write_limits
from PIL import Image
from reasoners import LIMITS_2_5, VIDEOS_2_5
from tiny_runs import moving_gradient

from worldsmith.config.tree.plain import to_dict
from worldsmith.data.conversations.media.media_processor import MediaProcessor
from worldsmith.families.vision_language.weights.model_folder import write_media_limits
from worldsmith.sampling.write_media import write_mp4


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three seconds of 12 frames each."""
    file = tmp_path_factory.mktemp("clip") / "a.mp4"
    write_mp4(file, moving_gradient(0, 36, 64, 96), 12)
    return str(file)


def joint(folder: Path) -> None:
    """All in one file, as newer models have it."""
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / name).unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": IMAGES, "video_processor": VIDEOS}))


def older(folder: Path) -> None:
    for name, stated in (("preprocessor_config.json", IMAGES), ("video_preprocessor_config.json", VIDEOS)):
        sides = {"min_pixels": stated["size"]["shortest_edge"], "max_pixels": stated["size"]["longest_edge"]}
        kept = {key: value for key, value in stated.items() if key != "size"}
        (folder / name).write_text(json.dumps({**kept, **sides}))


@pytest.mark.parametrize("form", [lambda folder: None, joint, older])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fps": 1.0},
        {"fps": 6.0, "max_frames": 7},
        {"max_frames": 2},
        {"min_frames": 20},
        {"min_frames": 900},
        {"nframes": 3},
        {"nframes": 50},
        {"total_pixels": 6 * 2048},
    ],
    ids=str,
)
def test_a_video_is_planned_as_in_the_run(settings: dict[str, Any], form: Any, clip: str, tmp_path: Path) -> None:
    form(write_limits(tmp_path))
    run = MediaProcessor.Config(**settings)
    expected = run.build(folder=tmp_path).plan_video(clip)
    plain = MediaProcessor.Config().build(folder=tmp_path).plan_video(clip)
    write_media_limits(to_dict(run), tmp_path)
    found = MediaProcessor.Config().build(folder=tmp_path).plan_video(clip)
    assert found == expected
    assert (found != plain) == bool(settings)


@pytest.mark.parametrize("stated", [True, False], ids=["with a file", "as released"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"fps": 6.0, "max_frames": 7}, {"max_pixels": 81_920, "fps": 1.0}, {"min_pixels": 9000, "max_pixels": 20_000},
     {"total_pixels": 400_000, "nframes": 30}, {"nframes": 3}, {"video_limits": "qwen_vl_utils", "nframes": 4}],
    ids=str,
)  # fmt: skip
def test_a_video_of_qwen2_5_vl_is_planned_as_in_the_run(
    settings: dict[str, Any], stated: bool, clip: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its limits are those of a frame; a released folder, which has no file for videos, gets one."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(LIMITS_2_5))
    if stated:
        (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(VIDEOS_2_5))
    run = MediaProcessor.Config(**settings)
    expected = run.build(folder=tmp_path).plan_video(clip)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        write_media_limits(to_dict(run), tmp_path, "qwen2_5_vl")
        assert MediaProcessor.Config().build(folder=tmp_path).plan_video(clip) == expected
    assert caplog.text == ""


def test_limits_of_images_are_kept_and_what_they_mean_for_videos_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_limits(tmp_path)
    Image.new("RGB", (800, 600)).save(tmp_path / "a.png")
    run = MediaProcessor.Config(max_pixels=100_000, min_pixels=70_000)
    expected = run.build(folder=tmp_path).plan_image(str(tmp_path / "a.png"))
    with caplog.at_level(logging.WARNING):
        write_media_limits(to_dict(run), tmp_path)
    assert MediaProcessor.Config().build(folder=tmp_path).plan_image(str(tmp_path / "a.png")) == expected
    assert "min_pixels = 70000 and max_pixels = 100000" in caplog.text


def test_without_settings_the_files_keep_their_bytes(tmp_path: Path) -> None:
    write_limits(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    write_media_limits(to_dict(MediaProcessor.Config()), tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
