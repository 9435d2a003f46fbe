"""How many leading latent frames of a sample stay clean (text-to-video, image-to-video, video-to-video)."""

from __future__ import annotations

import math
import random

from worldsmith.config import WrongValueError


def check_conditioning(weights: dict[str, float]) -> None:
    """Raises WrongValueError unless `weights` maps numbers of frames (as text) to weights that can be drawn from."""
    for frames, weight in weights.items():
        if not (frames.isascii() and frames.isdigit()):
            raise WrongValueError(
                {"conditioning_config": weights},
                why=f"the key '{frames}' is not a number of frames",
                remedy="write e.g. {'0': 0.7, '1': 0.3}",
            )
        if not (math.isfinite(weight) and weight >= 0):
            raise WrongValueError({f"conditioning_config.{frames}": weight}, why="a weight must be zero or more")
    if weights and sum(weights.values()) <= 0:
        remedy = "give at least one a positive weight, or leave it empty"
        raise WrongValueError({"conditioning_config": weights}, why="all weights are zero", remedy=remedy)


def draw_condition_frames(weights: dict[str, float], latent_frames: int, rng: random.Random) -> int:
    """Number of clean latent frames, drawn by weight and clamped to `latent_frames - 1`. No weights: always 0."""
    if not weights:
        return 0
    frames = sorted(int(n) for n in weights)
    drawn = rng.choices(frames, weights=[sum(w for n, w in weights.items() if int(n) == f) for f in frames])[0]
    return min(drawn, latent_frames - 1)
