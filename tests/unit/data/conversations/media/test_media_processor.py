"""What is planned from headers is what is read; limits of config and folder; damaged files are named."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from model_folder import write_limits
from PIL import Image
from torch.nn import functional as F

from worldsmith.data.conversations.media.image_patches import resize
from worldsmith.data.conversations.media.media_processor import MediaProcessor
from worldsmith.data.stream.errors import SampleError


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., MediaProcessor]:
    def make(videos: dict | None = None, **settings: object) -> MediaProcessor:
        config = MediaProcessor.Config(**settings)
        config.check()
        return config.build(folder=write_limits(tmp_path / "model", videos=videos))

    return make


def test_a_video_is_read_as_planned(tmp_path: Path, write_clip: Callable, build: Callable) -> None:
    path = str(write_clip(tmp_path / "a.mp4", frames=24, fps=8, width=96, height=64))
    media = build()
    plan = media.plan_video(path)
    assert plan.indices == [0, 5, 9, 14, 18, 23]
    assert plan.times == pytest.approx([2.5 / 8, 11.5 / 8, 20.5 / 8])
    assert (plan.size, plan.grid, plan.tokens) == ((64, 96), (3, 4, 6), 18)
    patches = media.read(plan)
    assert patches.dtype == np.uint8
    assert patches.shape == (3 * 4 * 6, 1536)
    # Red counts the frames by tens: the two frames of a row of time are the right ones.
    reds = patches.reshape(3, 24, 3, 2, 256)[:, :, 0].mean(axis=(1, 3))
    assert np.abs(reds - [[0, 50], [90, 140], [180, 230]]).max() < 12


def test_a_video_is_scaled_in_integers_like_torch(tmp_path: Path, write_clip: Callable, build: Callable) -> None:
    path = str(write_clip(tmp_path / "a.mp4", frames=5, width=130, height=70, noise=True))
    media = build(nframes=2)
    plan = media.plan_video(path)
    assert plan.size == (64, 128)
    noise = torch.randint(0, 256, (1, 3, 70, 130), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    small = F.interpolate(noise, size=(64, 128), mode="bicubic", antialias=True)
    assert torch.equal(resize(noise, (64, 128)), small)
    by_pil = np.asarray(Image.fromarray(noise[0].permute(1, 2, 0).numpy()).resize((128, 64), Image.Resampling.BICUBIC))
    assert np.abs(by_pil - small[0].permute(1, 2, 0).float().numpy()).mean() < 0.5  # only clamped noise differs by more
    assert media.read(plan).shape == (plan.tokens * 4, 1536)


def test_a_turned_video_stands_upright(tmp_path: Path, write_clip: Callable, build: Callable) -> None:
    path = str(write_clip(tmp_path / "a.mp4", frames=4, width=128, height=64, rotation=90))
    media = build()
    plan = media.plan_video(path)
    assert plan.size == (128, 64)
    patches = media.read(plan).reshape(2, 4, 2, 2, 2, 3, 2, 16, 16)
    green = patches[..., 1, :, :, :].mean(axis=(0, 1, 3, 5, 6, 7))  # by block column and column of a block
    assert abs(green[0].mean() - green[1].mean()) > 150


def test_a_single_frame_is_shown_twice(tmp_path: Path, write_clip: Callable, build: Callable) -> None:
    media = build()
    plan = media.plan_video(str(write_clip(tmp_path / "a.mp4", frames=1)))
    assert (plan.indices, plan.grid, plan.times) == ([0], (1, 4, 6), [0.0])
    patches = media.read(plan).reshape(24, 3, 2, 256)
    assert np.array_equal(patches[:, :, 0], patches[:, :, 1])


def test_unevenly_spaced_frames_have_their_own_times(tmp_path: Path, write_clip: Callable, build: Callable) -> None:
    times = [0, 60, 600, 660, 1200, 1260, 2400, 2460]
    plan = build(nframes=8).plan_video(str(write_clip(tmp_path / "a.mp4", frames=8, times=times)))
    assert plan.info.variable_rate
    assert plan.times == pytest.approx([0.05, 1.05, 2.05, 4.05])


def test_a_stated_rate_replaces_the_containers(tmp_path: Path, write_clip: Callable, build: Callable) -> None:
    plan = build().plan_video(str(write_clip(tmp_path / "a.mp4", frames=24, fps=8)), fps=4.0)
    assert len(plan.indices) == 12
    assert plan.times[-1] == pytest.approx((21 + 23) / 2 / 4)


@pytest.mark.parametrize(
    ("settings", "frames", "size"),
    [
        ({}, 8, (64, 96)),
        ({"fps": 1.0}, 4, (64, 96)),
        ({"fps": 1.0, "min_frames": 2}, 4, (64, 96)),
        ({"fps": 0.5, "min_frames": 2}, 2, (64, 96)),
        ({"fps": 8.0, "max_frames": 6}, 6, (64, 96)),
        ({"max_frames": 2}, 2, (64, 96)),
        ({"nframes": 3}, 3, (64, 96)),
        ({"total_pixels": 8 * 2048}, 8, (32, 32)),
        ({"max_pixels": 2048}, 8, (32, 32)),
        ({"min_pixels": 4 * 64 * 96}, 8, (128, 192)),
        ({"min_pixels": 4 * 64 * 96, "nframes": 2}, 2, (128, 192)),
    ],
)
def test_settings_of_a_video(
    tmp_path: Path, write_clip: Callable, build: Callable, settings: dict, frames: int, size: tuple[int, int]
) -> None:
    path = str(write_clip(tmp_path / "a.mp4", frames=32, fps=8))
    plan = build(**settings).plan_video(path)
    assert (len(plan.indices), plan.size) == (frames, size)


def test_the_cap_of_a_frame_that_a_folder_states(build: Callable) -> None:
    media = build(videos={"cap_pixels_per_frame": True})
    assert media.video_pixels(8) == (4096, 768 * 1024 * 8)
    assert media.video_pixels(32) == (4096, 25165824 // 32 * 32)
    assert build().video_pixels(8) == (4096, 25165824)


def test_settings_of_an_image(build: Callable) -> None:
    image = png(np.zeros((100, 200, 3), np.uint8))
    assert build().plan_image(image).size == (192, 384)
    assert build(max_pixels=4096).plan_image(image).size == (32, 64)
    assert build(min_pixels=400000).plan_image(image).size == (448, 896)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"fps": 1.0, "nframes": 8}, "set one of them"),
        ({"nframes": 8, "max_frames": 9}, "no effect"),
        ({"min_pixels": 9, "max_pixels": 8}, "no value is between"),
        ({"fps": 0.0}, "above 0"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MediaProcessor.Config(**settings).check()


def test_an_image_is_the_same_from_a_file_bytes_and_a_data_uri(tmp_path: Path, build: Callable) -> None:
    data = png(np.random.default_rng(2).integers(0, 256, (50, 80, 3), np.uint8))
    (tmp_path / "a.png").write_bytes(data)
    media = build()
    sources = [str(tmp_path / "a.png"), data, "data:image/png;base64," + base64.b64encode(data).decode()]
    first, *others = (media.read(media.plan_image(source)) for source in sources)
    assert all(np.array_equal(first, other) for other in others)


def test_an_image_stands_upright_as_its_exif_data_say(tmp_path: Path, build: Callable) -> None:
    pixels = np.zeros((64, 128, 3), np.uint8)
    pixels[:, :64] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    Image.fromarray(pixels).save(tmp_path / "a.jpg", exif=exif)
    media = build(min_pixels=1024)
    plan = media.plan_image(str(tmp_path / "a.jpg"))
    assert plan.size == (128, 64)
    patches = media.read(plan).reshape(4, 2, 4, 3, 2, 256)  # block rows first
    assert patches[:2].min() > 250
    assert patches[2:].max() < 5


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent.png", "missing_file"),
        ("empty.png", "empty_file"),
        ("text.png", "not_an_image"),
        ("cut.png", "truncated"),
        ("fifo.png", "not_an_image"),
        ("folder", "not_an_image"),
        ("drawing.eps", "not_an_image"),
    ],
)
def test_images_that_cannot_be_read(tmp_path: Path, build: Callable, name: str, reason: str) -> None:
    whole = png(np.random.default_rng(3).integers(0, 256, (64, 64, 3), np.uint8))
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "drawing.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo.png")
    media = build()
    with pytest.raises(SampleError) as caught:
        media.read(media.plan_image(str(tmp_path / name)))
    assert caught.value.reason == reason


def test_a_data_uri_must_be_base64(build: Callable) -> None:
    for text in ("data:image/png,abc", "data:image/png;base64,a"):
        with pytest.raises(SampleError, match="not_an_image"):
            build().plan_image(text)


def test_a_line_is_no_picture(build: Callable) -> None:
    with pytest.raises(SampleError, match="extreme_aspect: 300x1 px"):
        build().plan_image(png(np.zeros((1, 300, 3), np.uint8)))


def png(pixels: np.ndarray) -> bytes:
    import io

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_a_size_that_is_asked_for_is_that_of_every_image_and_frame(
    tmp_path: Path, write_clip: Callable, build: Callable
) -> None:
    video = str(write_clip(tmp_path / "a.mp4", frames=5, width=130, height=70))
    Image.new("RGB", (50, 20)).save(tmp_path / "a.png")
    media = build(resized_height=100, resized_width=70, nframes=4)
    plans = media.plan_image(str(tmp_path / "a.png")), media.plan_video(video)
    assert [plan.size for plan in plans] == [(96, 64), (96, 64)]
    assert [media.read(plan).shape for plan in plans] == [(6 * 4, 1536), (2 * 6 * 4, 1536)]
    own = media.plan_image(str(tmp_path / "a.png"), (64, 128)), media.plan_video(video, resized=(64, 128))
    assert [plan.size for plan in own] == [(64, 128), (64, 128)]


@pytest.mark.parametrize(
    "settings",
    [{"resized_height": 64}, {"resized_height": 64, "resized_width": 64, "total_pixels": 65536}],
)
def test_half_a_size_and_limits_beside_a_size_are_refused(build: Callable, settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="resized_height"):
        build(**settings)


OF_QWEN_VL_UTILS = [
    # (frames, rate, height, width), settings -> number of frames, (height, width): fetch_video of qwen-vl-utils 0.0.14
    ((240, 30, 1080, 1920), {"nframes": 8}, (8, (640, 1152))),
    ((240, 30, 240, 320), {"nframes": 8}, (8, (320, 448))),
    ((240, 30, 480, 854), {"nframes": 7}, (8, (480, 864))),
    ((2259, 30, 1080, 1920), {"fps": 1.0}, (74, (640, 1152))),
    ((2259, 30, 1080, 1920), {"fps": 1.0, "total_pixels": 8388608}, (74, (352, 608))),
    ((2259, 30, 720, 1280), {"fps": 2.0, "total_pixels": 37748736}, (150, (512, 928))),
    ((2259, 30, 720, 1280), {"fps": 1.0, "max_pixels": 200000}, (74, (320, 576))),
    ((100, 25, 64, 64), {"fps": 1.0}, (4, (384, 384))),
    ((100, 25, 720, 1280), {"fps": 2.0, "min_frames": 5, "max_frames": 7}, (6, (640, 1152))),
    ((3, 25, 720, 1280), {"fps": 1.0}, (2, (640, 1152))),
    ((9000, 30, 2160, 3840), {"fps": 4.0}, (768, (384, 736))),
    ((2259, 30, 1080, 1920), {"fps": 1.0, "min_pixels": 4096, "max_pixels": 81920}, (74, (192, 352))),
]


@pytest.mark.parametrize(("video", "settings", "expected"), OF_QWEN_VL_UTILS)
def test_videos_may_have_the_limits_of_qwen_vl_utils(
    video: tuple[int, ...], settings: dict, expected: tuple, build: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = SimpleNamespace(**dict(zip(("num_frames", "fps", "height", "width"), video)), variable_rate=False)
    monkeypatch.setattr("worldsmith.data.video_decoder.examine", lambda path: (None, info))
    counted = {**settings, "total_pixels": 2 * settings["total_pixels"]} if "total_pixels" in settings else settings
    plan = build(video_limits="qwen_vl_utils", **counted).plan_video("a.mp4")
    assert (len(plan.indices), plan.size) == expected
    assert plan.tokens == len(plan.indices) // 2 * plan.size[0] * plan.size[1] // 1024
