"""Clips that cannot be are refused before they are made."""

from __future__ import annotations

import pytest

from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.falling_dataset import FallingPlan
from worldsmith.data.moving_shapes import DatasetPlan
from worldsmith.sampling.requests import GenerationRequest


@pytest.mark.parametrize("plan", [DatasetPlan, FallingPlan])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": 1_000_000}, r"frames of 1000000×1000000 pixels take \d+ GiB, and this machine has \d+ GiB of memory"),
        ({"num_frames": 10**12 + 1}, "GiB of memory"),
        ({"fps": 10**12}, "fps must be from 0.01 to 1000"),
    ],
)
def test_data_sets(plan: type[DatasetPlan], settings: dict[str, int], words: str) -> None:
    plan().check()
    with pytest.raises(ValueError, match=words):
        plan(**settings).check()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_frames": 10**9}, "request 'x': 1000000000 frames of 64×64 pixels take"),
        ({"fps": 1e300}, "request 'x': fps must be from 0.01 to 1000"),
        ({"fps": 1e-300}, "request 'x': fps must be from 0.01 to 1000"),
        ({"fps": float("nan")}, "request 'x': fps must be from 0.01 to 1000"),
    ],
)
def test_requests(settings: dict[str, float], words: str) -> None:
    request = {"prompt": "x", "height": 64, "width": 64, "num_frames": 5, "fps": 8}
    GenerationRequest(**request).check(LatentGrid(4, 16, 2))
    with pytest.raises(ValueError, match=words):
        GenerationRequest(**{**request, **settings}).check(LatentGrid(4, 16, 2))
