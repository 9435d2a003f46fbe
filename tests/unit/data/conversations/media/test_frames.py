"""Which frames are taken, and their times: transformers' own sampler is the judge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata

from worldsmith.data.conversations.media.frames_and_sizes import choose_frames, patch_times


class Judge(Qwen3VLVideoProcessor):
    """Its sampler needs three numbers and no torchvision, which its constructor asks for."""

    def __init__(self) -> None:
        self.fps, self.min_frames, self.max_frames = 2, 4, 768


@given(st.integers(1, 5000), st.floats(1, 120), st.floats(0.1, 30))
def test_frames_by_rate(total: int, rate: float, wanted: float) -> None:
    expected = Judge.sample_frames(Judge(), VideoMetadata(total_num_frames=total, fps=rate), fps=wanted)
    chosen = choose_frames(total, rate, wanted_fps=wanted, wanted=None, min_frames=4, max_frames=768)
    assert chosen == list(expected)


def test_frames_by_number() -> None:
    by_number = {"wanted_fps": None, "min_frames": 4, "max_frames": 768}
    assert choose_frames(10, 5.0, wanted=4, **by_number) == [0, 3, 6, 9]
    assert choose_frames(3, 5.0, wanted=8, **by_number) == [0, 1, 2]
    assert choose_frames(1, 5.0, wanted=8, **by_number) == [0]


@pytest.mark.parametrize(
    ("indices", "fps", "stamps"),
    [
        (list(range(8)), 2, "0.2 1.2 2.2 3.2"),
        ([0, 14, 27, 41, 54, 68, 81, 95], 24, "0.3 1.4 2.5 3.7"),
        ([0, 12, 24], 24, "0.2 1.0"),
        (list(range(0, 120, 15)), 29.97, "0.3 1.3 2.3 3.3"),
    ],
)
def test_times(indices: list[int], fps: float, stamps: str) -> None:
    times = patch_times([index / fps for index in indices], 2)
    assert times == Qwen3VLProcessor._calculate_timestamps(None, list(indices), fps, 2)
    assert " ".join(f"{time:.1f}" for time in times) == stamps
