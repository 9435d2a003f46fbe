"""Dense motion of videos whose motion is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from worldsmith.evaluation.pixel_measures import Motion, measure_motion


def moving(down: int, right: int, *, frames: int = 4, side: int = 64) -> Tensor:
    """Noise that moves as a whole by so many pixels a frame, uint8 [3, T, side, side]."""
    picture = torch.randint(0, 256, (3, 200, 200), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    starts = [(60 - down * time, 60 - right * time) for time in range(frames)]
    return torch.stack([picture[:, y : y + side, x : x + side] for y, x in starts], dim=1)


def measured(video: Tensor) -> Motion:
    motion = measure_motion(video)
    assert motion is not None
    return motion


def test_a_still_video_neither_moves_nor_flickers() -> None:
    still = measured(moving(0, 0))
    assert (still.magnitude, still.flicker) == (0, 0)
    assert measured(torch.full((3, 3, 32, 32), 90, dtype=torch.uint8)).magnitude == 0


@pytest.mark.parametrize(("down", "right"), [(0, 3), (-2, 0), (3, -4), (8, 8)])
def test_a_shift_is_the_motion_and_no_flicker(down: int, right: int) -> None:
    motion = measured(moving(down, right))
    assert motion.vectors.reshape(-1, 2).unique(dim=0).tolist() == [[down, right]]
    assert motion.magnitude == pytest.approx(math.hypot(down, right))
    assert motion.flicker == 0


def test_brightness_that_goes_up_and_down_is_flicker_and_no_motion() -> None:
    video = torch.full((3, 6, 32, 32), 100, dtype=torch.uint8)
    video[:, 1::2] += 10
    motion = measured(video)
    assert motion.magnitude == 0
    assert motion.flicker == pytest.approx(10, rel=1e-4)


def test_noise_of_coding_moves_nothing() -> None:
    video = torch.full((3, 4, 48, 48), 100, dtype=torch.uint8)
    video[0] += torch.randint(0, 2, video.shape[1:], generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    assert measured(video).magnitude == 0


def test_large_frames_are_shrunk_and_motion_stays_in_their_pixels() -> None:
    video = moving(0, 2, frames=3).repeat_interleave(8, 2).repeat_interleave(8, 3)
    assert video.shape[2:] == (512, 512)
    assert measured(video).magnitude == pytest.approx(16)


def test_the_error_is_the_distance_of_the_ends() -> None:
    assert measured(moving(0, 3)).error(measured(moving(4, 0))) == pytest.approx(5)
    assert measured(moving(1, 3)).error(measured(moving(1, 3))) == 0


def test_what_has_no_motion_to_measure() -> None:
    assert measure_motion(moving(0, 0, frames=1)) is None
    assert measure_motion(torch.zeros(3, 4, 8, 8, dtype=torch.uint8)) is None
