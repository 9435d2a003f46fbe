"""The limits of pictures come from the model folder, and from nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_folder import IMAGES, VIDEOS, write_limits

from worldsmith.data.conversations.media.limits import has_limits, read_limits
from worldsmith.data.stream.errors import DataError


def test_the_published_files(tmp_path: Path) -> None:
    images, videos = read_limits(write_limits(tmp_path))
    assert (images.min_pixels, images.max_pixels, images.factor) == (65536, 16777216, 32)
    assert (videos.min_pixels, videos.max_pixels, videos.factor) == (4096, 25165824, 32)
    assert (videos.fps, videos.min_frames, videos.max_frames, videos.frame_pixels) == (2.0, 4, 768, None)


def test_one_file_may_hold_both(tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": IMAGES, "video_processor": VIDEOS}))
    assert read_limits(tmp_path) == read_limits(write_limits(tmp_path / "two"))


@pytest.mark.parametrize("name", ["preprocessor_config.json", "video_preprocessor_config.json"])
def test_an_absent_file_is_an_error(tmp_path: Path, name: str) -> None:
    (write_limits(tmp_path) / name).unlink()
    with pytest.raises(DataError, match=f"has no {name}.*model's repository"):
        read_limits(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": {"shortest_edge": 4}}, "lacks size.longest_edge"),
        ({"patch_size": None}, "lacks patch_size"),
        ({"resample": 2}, "resample is 2; only 3"),
        ({"do_normalize": False}, "do_normalize is False"),
        ({"rescale_factor": 1.0}, r"rescale_factor is 1\.0"),
        ({"image_std": [0.5, 0.0, 0.5]}, r"image_std: expected finite numbers above 0, found \[0\.5, 0\.0, 0\.5\]"),
        ({"image_mean": ["0.5", 0.5, 0.5]}, r"image_mean: expected finite numbers, found \['0\.5'"),
    ],
)
def test_what_is_missing_or_unknown_is_an_error(tmp_path: Path, change: dict, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_limits(write_limits(tmp_path, videos=change))


def test_a_folder_without_files_is_for_text(tmp_path: Path) -> None:
    assert not has_limits(tmp_path)
    assert has_limits(write_limits(tmp_path))
