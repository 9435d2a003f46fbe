from __future__ import annotations

import random
from collections import Counter

import pytest

from worldsmith.data.clips.clip_maker import draw_condition_frames
from worldsmith.data.clips.video_dataset import check_conditioning


def test_frames_are_drawn_by_weight_whatever_their_sum() -> None:
    """70 % text-to-video, 20 % image-to-video, 10 % video-to-video."""
    rng = random.Random(0)
    drawn = Counter(draw_condition_frames({"0": 7, "1": 2, "2": 1}, 5, rng) for _ in range(5000))
    for frames, share in ((0, 0.7), (1, 0.2), (2, 0.1)):
        assert abs(drawn[frames] / 5000 - share) < 0.025


def test_at_least_one_latent_frame_stays_noisy() -> None:
    assert {draw_condition_frames({"2": 1.0}, t, random.Random(0)) for t in (1, 2)} == {0, 1}
    assert draw_condition_frames({"2": 1.0}, 3, random.Random(0)) == 2
    assert draw_condition_frames({}, 5, random.Random(0)) == 0


@pytest.mark.parametrize("weights", [{"x": 1.0}, {"-1": 1.0}, {"0": -1.0}, {"0": 0.0}, {"0": float("nan")}])
def test_weights_that_cannot_be_drawn_from_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="conditioning_config"):
        check_conditioning(weights)
