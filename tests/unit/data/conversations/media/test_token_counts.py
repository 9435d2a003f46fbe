"""Tokens of images and videos: the arithmetic on paper, the plan that is made from headers, and what is decoded."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_folder import write_limits
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

from worldsmith.data.conversations.media.media_processor import MediaProcessor

TOKEN = 32 * 32
"""Pixels of a token: patches of 16 x 16, two by two."""


def media_of(folder: Path, **settings: Any) -> MediaProcessor:
    return MediaProcessor.Config(**settings).build(folder=write_limits(folder / "model"))


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> str:
    """75 seconds at 1080p and one frame a second."""
    import av
    import numpy as np

    path = tmp_path_factory.mktemp("film") / "film.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=1, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 1920, 1080, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((1620, 1920), np.uint8), format="yuv420p")
        for number in range(75):
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"nframes": 8, "max_pixels": 768 * TOKEN}, 2880),  # at most 768 tokens a frame: 4 times 20 x 36
        ({"nframes": 74, "total_pixels": 2 * 8_388_608}, 7733),  # that budget counts two frames once: 37 times 11 x 19
    ],
)
def test_published_counts(film: str, tmp_path: Path, settings: dict[str, int], tokens: int) -> None:
    assert media_of(tmp_path, **settings).plan_video(film).tokens == tokens


@pytest.mark.parametrize(
    ("frames", "height", "width", "settings"),
    [
        (8, 64, 96, {}),
        (9, 70, 130, {"nframes": 5}),
        (16, 200, 120, {"fps": 4.0, "max_frames": 6}),
        (12, 128, 160, {"nframes": 8, "max_pixels": 40 * 256}),
        (12, 128, 160, {"nframes": 8, "total_pixels": 8 * 7000}),
        (1, 48, 48, {}),
    ],
)
def test_a_video_has_the_tokens_of_the_formula(
    frames: int, height: int, width: int, settings: dict[str, Any], tmp_path: Path, write_clip: Callable[..., Path]
) -> None:
    """ceil(frames / 2) times H x W / 1024, sides rounded to 32 and within the budgets, before and after decoding."""
    path = str(write_clip(tmp_path / "a.mp4", frames=frames, fps=8, width=width, height=height))
    media = media_of(tmp_path, **settings)
    plan = media.plan_video(path)
    count = max(2, len(plan.indices))
    least, most = media.video_pixels(count)
    rows, columns = smart_resize(count, height, width, temporal_factor=2, factor=32, min_pixels=least, max_pixels=most)
    assert plan.tokens == math.ceil(count / 2) * rows * columns // TOKEN
    assert len(media.read(plan)) == 4 * plan.tokens


@pytest.mark.parametrize("size", [(64, 64), (417, 300), (1280, 720), (33, 900)])
@pytest.mark.parametrize("settings", [{}, {"max_pixels": 200_000}, {"min_pixels": 300_000}])
def test_an_image_has_the_tokens_that_transformers_gives_it(
    size: tuple[int, int], settings: dict[str, int], tmp_path: Path
) -> None:
    Image.new("RGB", size).save(tmp_path / "a.png")
    media = media_of(tmp_path, **settings)
    plan = media.plan_image(str(tmp_path / "a.png"))
    limits = media.images
    judge = Qwen2VLImageProcessorPil(
        patch_size=16, merge_size=2, temporal_patch_size=2,
        size={"shortest_edge": settings.get("min_pixels", limits.min_pixels),
              "longest_edge": settings.get("max_pixels", limits.max_pixels)},
    )  # fmt: skip
    grid = judge(Image.open(tmp_path / "a.png"))["image_grid_thw"][0]
    assert plan.grid == tuple(int(side) for side in grid)
    assert plan.tokens == math.prod(plan.grid) // 4
    assert len(media.read(plan)) == 4 * plan.tokens
