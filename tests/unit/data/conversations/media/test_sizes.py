"""Sizes and token counts: published vectors, and transformers' own formulas as the judge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as judge_of_images
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as judge_of_videos

from worldsmith.data.conversations.media.frames_and_sizes import fixed_size, image_size, video_size
from worldsmith.data.stream.errors import SampleError

IMAGE = {"factor": 32, "least": 65536, "most": 16777216}
VIDEO = {"factor": 32, "temporal": 2, "least": 4096, "most": 25165824}


@pytest.mark.parametrize(("given_size", "size"), [((64, 64), (256, 256)), ((300, 417), (288, 416))])
def test_images(given_size: tuple[int, int], size: tuple[int, int]) -> None:
    assert image_size(*given_size, **IMAGE) == size


@pytest.mark.parametrize(
    ("frames", "height", "width", "size", "tokens"),
    [
        (8, 480, 832, (480, 832), 1560),
        (16, 480, 832, (480, 832), 3120),
        (32, 480, 832, (480, 832), 6240),
        (8, 720, 1280, (704, 1280), 3520),
        (16, 720, 1280, (704, 1280), 7040),
        (32, 720, 1280, (640, 1152), 11520),
        (32, 1080, 1920, (640, 1152), 11520),
        (7, 360, 640, (352, 640), 880),
        (10, 512, 512, (512, 512), 1280),
    ],
)
def test_videos(frames: int, height: int, width: int, size: tuple[int, int], tokens: int) -> None:
    assert video_size(frames, height, width, **VIDEO) == size
    assert -(-frames // 2) * size[0] * size[1] // 32**2 == tokens


sides = st.integers(1, 3000)


@pytest.mark.parametrize(
    ("asked", "factor", "size"),
    [
        ((540, 960), 32, (544, 960)),
        ((540, 960), 28, (532, 952)),
        ((720, 1280), 32, (704, 1280)),
        ((10, 10), 32, (64, 64)),
        ((10, 300), 32, (32, 288)),
        ((9000, 9000), 32, (4096, 4096)),
        ((50, 4000), 32, (64, 4000)),
    ],
)
def test_a_size_that_is_asked_for_as_qwen_vl_utils_rounds_it(
    asked: tuple[int, int], factor: int, size: tuple[int, int]
) -> None:
    assert fixed_size(*asked, factor=factor) == size


@given(st.integers(32, 9000), st.integers(32, 9000))
def test_a_size_that_is_asked_for_as_transformers_has_it(height: int, width: int) -> None:
    limits = {"min_pixels": 4 * 32**2, "max_pixels": 16384 * 32**2}
    try:
        expected = judge_of_images(height, width, factor=32, **limits)
    except ValueError:
        with pytest.raises(SampleError, match="extreme_aspect"):
            fixed_size(height, width, factor=32)
    else:
        assert fixed_size(height, width, factor=32) == expected


@given(sides, sides, st.integers(1, 300000), st.integers(1, 64))
def test_images_as_transformers_has_them(height: int, width: int, least: int, times: int) -> None:
    limits = {"factor": 32, "least": least, "most": least * times}
    try:
        expected = judge_of_images(height, width, factor=32, min_pixels=least, max_pixels=least * times)
    except ValueError:
        with pytest.raises(SampleError, match="extreme_aspect"):
            image_size(height, width, **limits)
    else:
        assert image_size(height, width, **limits) == expected


@given(st.integers(2, 100), sides, sides, st.integers(1, 300000), st.integers(1, 64))
def test_videos_as_transformers_has_them(frames: int, height: int, width: int, least: int, times: int) -> None:
    most = least * times
    try:
        expected = judge_of_videos(frames, height, width, 2, 32, least, most)
    except ValueError:
        with pytest.raises(SampleError, match="extreme_aspect"):
            video_size(frames, height, width, factor=32, temporal=2, least=least, most=most)
    else:
        assert video_size(frames, height, width, factor=32, temporal=2, least=least, most=most) == expected
