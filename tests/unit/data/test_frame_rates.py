"""Frames at a wanted rate: CogVideo's own rule, ours beside it, and that neither ever fails."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from worldsmith.config import WrongValueError
from worldsmith.data.clips.frame_selection import FrameSelection, select_frames
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.stream.errors import SampleError

RATES = st.one_of(st.floats(1.0, 120.0), st.sampled_from([8.0, 15.0, 23.976, 24.0, 25.0, 29.97, 30.0, 60.0]))
LENGTHS = st.integers(1, 1500)
FRAMES = st.integers(1, 24).map(lambda k: 4 * k + 1)


def take(mode: str, total: int, fps: float, *, frames: int = 49, least: int = 1, skip: int = 3) -> FrameSelection:
    config = VideoDataset.Config(
        min_frames=least, num_video_frames=frames, temporal_interval_mode=mode, skip_frames=skip
    )
    return select_frames((0, -1, 1), config, LatentGrid(4, 16, 2), random.Random(0), total=total, fps=fps)


def sat_takes(total: int, fps: float, frames: int = 49, skip: int = 3) -> list[int] | None:
    """The frames of SAT's folder data set before it repeats the last one; None where it fails or has to repeat."""
    if total / fps * 8 > frames:
        start, end = skip, int(skip + frames / 8 * fps)
        distance = (end - start) // frames
    elif total > frames:
        start, end = skip, total - skip
        distance = max((end - start) // frames, 1)
    else:
        return None
    taken = list(range(start, end, distance))[:frames] if distance else []
    return taken if len(taken) == frames and taken[-1] < total else None


@pytest.mark.parametrize(
    ("fps", "total", "distance", "rate"),
    [
        (24.0, 300, 3, 8.0),
        (30.0, 300, 3, 10.0),
        (23.976, 300, 2, 11.988),
        (25.0, 300, 3, 8.333),
        (60.0, 600, 7, 8.571),
        (30.0, 150, 2, 15.0),
    ],
)
def test_the_distances_of_sat_and_the_rates_that_they_give(fps: float, total: int, distance: int, rate: float) -> None:
    taken = take("sat", total, fps)
    assert (taken.interval, taken.count) == (distance, 49)
    assert fps / taken.interval == pytest.approx(rate, abs=1e-3)
    assert list(taken.indices) == sat_takes(total, fps)


@example(total=255, fps=119.99999999999999, frames=17, skip=2)  # the sum with `skip` rounds to an integer
@given(LENGTHS, RATES, FRAMES, st.integers(0, 5))
def test_where_sat_takes_frames_they_are_the_same(total: int, fps: float, frames: int, skip: int) -> None:
    taken = sat_takes(total, fps, frames, skip)
    assume(taken is not None)
    assert list(take("sat", total, fps, frames=frames, skip=skip).indices) == taken


@pytest.mark.parametrize(
    ("total", "fps", "count"),
    [
        (50, 8.0, 49),  # SAT reads past the end
        (200, 4.0, 49),  # SAT has a distance of 0
        (6, 24.0, 5),  # SAT has less than no frame
        (49, 8.0, 41),  # SAT repeats its last frame 8 times
    ],
)
def test_where_sat_fails_or_repeats_a_frame(total: int, fps: float, count: int) -> None:
    assert sat_takes(total, fps) is None
    taken = take("sat", total, fps)
    assert (taken.interval, taken.count) == (1, count)
    assert take("sat", max(total, 49), fps, least=49).count == 49


@given(st.sampled_from(["sat", "target_fps"]), LENGTHS, RATES, FRAMES, st.integers(0, 5), st.integers(1, 49))
def test_frames_ascend_within_the_clip_or_it_is_too_short(
    mode: str, total: int, fps: float, frames: int, skip: int, least: int
) -> None:
    least = min(least, frames)
    if total < least + 2 * skip + 4:
        with suppress(SampleError):
            take(mode, total, fps, frames=frames, skip=skip, least=least)
        return
    taken = take(mode, total, fps, frames=frames, skip=skip, least=least)
    indices = list(taken.indices)
    assert indices == sorted(set(indices))
    assert 0 <= indices[0] <= indices[-1] < total
    assert len(indices) == taken.count <= frames
    assert taken.count % 4 == 1
    assert taken.count + 4 > least


@given(LENGTHS, RATES)
def test_ours_keeps_the_rate_where_a_clip_is_long_enough(total: int, fps: float) -> None:
    assume(total >= 55)
    taken = take("target_fps", total, fps)
    assert taken.count == 49
    rate = fps / taken.interval
    assert rate <= max(fps, 8.0) + 1e-9
    if fps <= 8:
        assert rate == fps
    elif (total - 6) / fps * 8 >= 49:
        assert rate == pytest.approx(8)
    else:
        assert rate >= 8 - 1e-9


@pytest.mark.parametrize(
    ("total", "fps", "mode", "count", "rate"),
    [
        (300, 30.0, "target_fps", 49, 8.0),
        (150, 30.0, "target_fps", 33, 8.0),
        (70, 30.0, "target_fps", 17, 8.0),
        (40, 30.0, "target_fps", 17, 30 / 2.4375),  # as far apart as they are there
        (60, 24.0, "force_one", 49, 24.0),
        (60, 60.0, "max_30fps", 17, 30.0),
        (120, 24.0, "sat", 33, 8.0),
    ],
)
def test_a_clip_gets_the_largest_number_of_frames_that_it_has(
    total: int, fps: float, mode: str, count: int, rate: float
) -> None:
    taken = take_bucket(mode, total, fps, [17, 33, 49])
    assert (taken.count, fps / taken.interval) == (count, pytest.approx(rate))


def test_a_clip_below_the_smallest_bucket_is_too_short() -> None:
    config = VideoDataset.Config(frame_buckets=[17, 33], temporal_interval_mode="force_one")
    config.check()
    with pytest.raises(SampleError, match="num_video_frames=17"):
        take_bucket("force_one", 16, 8.0, config.frame_buckets)
    for changes in ({"num_video_frames": 17}, {"frame_buckets": [33, 17]}):
        with pytest.raises(WrongValueError, match="frame_buckets"):
            replace(config, **changes).check()


def take_bucket(mode: str, total: int, fps: float, buckets: list[int]) -> FrameSelection:
    config = VideoDataset.Config(min_frames=1, temporal_interval_mode=mode, frame_buckets=buckets)
    return select_frames((0, -1, 1), config, LatentGrid(4, 16, 2), random.Random(0), total=total, fps=fps)


def test_the_nearest_frames_are_taken() -> None:
    assert list(take("target_fps", 30, 20.0, frames=5, skip=0).indices) == [0, 3, 5, 8, 10]


def test_a_rate_without_a_mode_for_it_is_a_mistake() -> None:
    VideoDataset.Config(num_video_frames=49, temporal_interval_mode="target_fps", target_fps=16.0).check()
    with pytest.raises(WrongValueError, match="this mode does not use target_fps"):
        VideoDataset.Config(num_video_frames=49, target_fps=16.0).check()
    with pytest.raises(WrongValueError, match="the mode sat always starts at the first frame"):
        VideoDataset.Config(num_video_frames=49, temporal_interval_mode="sat", frame_selection_mode="random").check()
