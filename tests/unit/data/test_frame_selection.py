from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.data.clips.frame_selection import FrameSelection, select_frames
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.stream.errors import SampleError


def select(window: tuple[int, int, int], **changes: object) -> FrameSelection:
    given = {"total": 1000, "fps": 24.0, "grid": LatentGrid(4, 16, 2), "rng": random.Random(0), "min_frames": 1}
    given |= changes
    arguments = {name: given.pop(name) for name in ("grid", "rng", "total", "fps")}
    return select_frames(window, VideoDataset.Config(**given), **arguments)


def test_a_whole_window_uses_its_own_interval_and_is_cut_to_4k_plus_1() -> None:
    assert list(select((10, 20, 1)).indices) == list(range(10, 19))
    assert list(select((10, 20, 2)).indices) == [10, 12, 14, 16, 18]


def test_the_end_is_clamped_to_the_file() -> None:
    assert select((0, 48, 1), total=40).count == 37


@pytest.mark.parametrize(
    ("mode", "fps", "interval"),
    [
        ("force_one", 60.0, 1),
        ("max_30fps", 60.0, 2),
        ("max_30fps", 59.94, 1),
        ("max_30fps", 24.0, 1),
        ("entire_chunk", 24.0, 5),
    ],
)
def test_published_interval_modes(mode: str, fps: float, interval: int) -> None:
    """59.94 fps stays at interval 1: the published formula truncates."""
    assert select((0, 99, 7), num_video_frames=17, temporal_interval_mode=mode, fps=fps).interval == interval


def test_center_and_random_starts() -> None:
    assert select((10, 59, 1), num_video_frames=17, frame_selection_mode="center").start == 10 + (50 - 17) // 2
    starts = {
        select((10, 59, 1), num_video_frames=17, frame_selection_mode="random", rng=random.Random(s)).start
        for s in range(400)
    }
    assert starts == set(range(10, 10 + 50 - 17 + 1))


def test_windows_outside_the_file_are_refused_with_numbers() -> None:
    with pytest.raises(SampleError, match=r"window 100\.\.148 has 0 frames inside the file, which has 49") as caught:
        select((100, 148, 1), total=49)
    assert caught.value.reason == "window_out_of_range"
    with pytest.raises(SampleError) as caught:
        select((0, 60, 1), total=49, min_frames=61)
    assert caught.value.reason == "window_out_of_range"
    with pytest.raises(SampleError) as caught:
        select((0, 9, 1), num_video_frames=17)
    assert caught.value.reason == "too_short"


@given(
    start=st.integers(0, 300), length=st.integers(1, 300), interval=st.integers(1, 9), total=st.integers(1, 500),
    wanted=st.one_of(st.just(-1), st.integers(1, 200)), fps=st.floats(1, 240), seed=st.integers(0, 99),
    interval_mode=st.sampled_from(["force_one", "max_30fps", "entire_chunk"]),
    start_mode=st.sampled_from(["first", "center", "random"]),
)  # fmt: skip
def test_selected_frames_lie_in_the_window_and_in_the_file(
    start: int,
    length: int,
    interval: int,
    total: int,
    wanted: int,
    fps: float,
    seed: int,
    interval_mode: str,
    start_mode: str,
) -> None:
    try:
        chosen = select(
            (start, start + length - 1, interval), total=total, fps=fps, num_video_frames=wanted,
            temporal_interval_mode=interval_mode, frame_selection_mode=start_mode, rng=random.Random(seed),
        )  # fmt: skip
    except SampleError:
        assert total <= start or min(start + length, total) - start < wanted
        return
    frames = list(chosen.indices)
    assert len(frames) == chosen.count
    assert chosen.count % 4 == 1
    assert start <= frames[0]
    assert frames[-1] < min(start + length, total)
    assert wanted == -1 or chosen.count <= wanted
