"""The detector reads rendered clips without an error and says nothing about clips that show no clear shape."""

from __future__ import annotations

import json
from dataclasses import replace

import av
import numpy as np
import pytest
from PIL import Image, ImageFilter
from seen_shapes import seen_attributes

from worldsmith.demo.adherence import detect
from worldsmith.demo.moving_shapes import COMBINATIONS, Attributes, MovingShapes, render_moving_shape, sample_scene


def clip(attributes=COMBINATIONS[0], seed=0, **changes):
    return render_moving_shape(replace(sample_scene(np.random.default_rng(seed), attributes), **changes))


def blurred(video, radius):
    return np.stack([np.asarray(Image.fromarray(f).filter(ImageFilter.GaussianBlur(radius))) for f in video])


def test_every_decoded_validation_clip_is_read_right(tmp_path):
    MovingShapes(clips=1, val_clips=64, seed=11).make(tmp_path / "set")
    wrong = []
    for line in (tmp_path / "set" / "val" / "video_dataset_file.jsonl").read_text().splitlines():
        record = json.loads(line)
        with av.open(str(tmp_path / "set" / "val" / record["vision_path"])) as container:
            video = np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])
        if seen_attributes(video) != Attributes(**record["moving_shapes"]):
            wrong.append((record["moving_shapes"], detect(video)))
    assert wrong == []


@pytest.mark.parametrize("attributes", COMBINATIONS[::3], ids="-".join)
def test_blur_and_noise_of_a_lossy_decoder_do_not_change_the_reading(attributes):
    rng = np.random.default_rng(1)
    video = blurred(clip(attributes, seed=4), 1.5)
    noisy = np.clip(video + rng.normal(0, 8, video.shape), 0, 255).astype(np.uint8)
    assert seen_attributes(noisy) == attributes


def test_other_sizes_are_read_too():
    scene = sample_scene(np.random.default_rng(2), COMBINATIONS[13])
    assert seen_attributes(render_moving_shape(scene, size=128, num_frames=33)) == COMBINATIONS[13]


def test_noise_blank_and_flicker_show_nothing():
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (17, 64, 64, 3), dtype=np.uint8)
    assert seen_attributes(noise) is None
    assert "no single shape" in detect(noise).reason
    assert seen_attributes(np.full((17, 64, 64, 3), 90, np.uint8)) is None
    assert seen_attributes(noise.mean(axis=0, keepdims=True).repeat(17, 0).astype(np.uint8)) is None
    smooth = blurred(noise, 6).astype(float)
    smooth = np.clip((smooth - smooth.mean()) * 8 + 90, 0, 255).astype(np.uint8)
    assert seen_attributes(smooth) is None


def test_a_shape_that_stands_still_has_no_direction_but_the_rest_is_read():
    found = detect(np.repeat(clip()[:1], 17, axis=0))
    assert (found.colour, found.shape, found.direction) == ("red", "square", None)
    assert "hardly moves" in found.reason


def test_frames_out_of_order_have_no_direction():
    order = np.random.default_rng(3).permutation(17)
    assert detect(clip(seed=1)[order]).direction is None


def test_a_diagonal_motion_has_no_direction():
    video = clip(COMBINATIONS[1], seed=6, start=(16.0, 16.0), travel=28.0)
    diagonal = np.stack([np.roll(frame, i * 28 // 16, axis=0) for i, frame in enumerate(video)])
    found = detect(diagonal)
    assert found.direction is None
    assert "not along one axis" in found.reason


@pytest.mark.parametrize("colour", [(200.0, 60.0, 210.0), (210.0, 210.0, 210.0), (230.0, 110.0, 20.0)])
def test_purple_grey_and_orange_are_no_known_colour(colour):
    found = detect(clip(colour=colour))
    assert (found.colour, found.shape) == (None, "square")


def test_two_shapes_at_once_are_not_one_clear_shape():
    one, other = clip(COMBINATIONS[2], start=(14.0, 50.0), side=24.0, travel=18.0), clip(COMBINATIONS[2])
    video = np.where(np.arange(64)[None, None, :, None] < 32, one, other[:, :, ::-1])
    both = video.copy()
    both[:, 4:28, 36:60] = one[0, 50, 14]
    assert seen_attributes(both) is None


def test_a_triangle_that_points_down_is_not_taken_for_the_triangle_or_the_square():
    upside_down = clip(COMBINATIONS[4], seed=2)[:, ::-1]
    assert detect(upside_down).shape is None


def test_a_trapezoid_half_way_between_square_and_triangle_has_no_known_shape():
    y, x = np.mgrid[:64, :64]
    video = np.full((17, 64, 64, 3), 60, np.uint8)
    for i, frame in enumerate(video):
        inside = (y >= 20) & (y < 44) & (np.abs(x - 18 - 1.6 * i) < 12 * (0.63 + 0.37 * (y - 20) / 24))
        frame[inside] = (55, 95, 230)
    found = detect(video)
    assert (found.colour, found.shape, found.direction) == ("blue", None, "right")
    assert "outline is unclear" in found.reason


def test_wrong_type_or_form_is_refused():
    with pytest.raises(ValueError, match=r"uint8 video \[T, H, W, 3\], found float64"):
        detect(np.zeros((17, 64, 64, 3)))
    with pytest.raises(ValueError, match=r"found uint8 \[3, 17, 64, 64\]"):
        detect(np.zeros((3, 17, 64, 64), np.uint8))
