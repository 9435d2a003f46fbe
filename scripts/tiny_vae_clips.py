"""The clips that the tiny video VAE is trained on, rendered on the fly."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from worldsmith.demo.moving_shapes import TRAIN_COMBINATIONS, render_moving_shape, sample_scene

# Smaller shapes, lighter backgrounds and freer paths than the dataset's own: harder cases, so that those are easy.
SCENES: dict[str, Any] = {
    "sides": (22.0, 30.0),
    "tones": (30.0, 60.0, 90.0),
    "travels": (18.0, 28.0),
    "wander": 1.0,
}


def training_clip(rng: np.random.Generator, frames: int, others: float) -> np.ndarray:
    """A stretch of a random clip, uint8 [frames, 64, 64, 3]: mostly moving shapes, else other moving pictures."""
    kind = rng.random()
    first = int(rng.integers(0, 17 - frames + 1))
    stretch = slice(first, first + frames)
    if kind < others / 2:
        return blobs(rng, stretch)
    combination = TRAIN_COMBINATIONS[rng.integers(len(TRAIN_COMBINATIONS))]
    scene = sample_scene(rng, combination, **SCENES)
    if kind < others:
        any_colour, any_ground = tuple(rng.uniform(0, 255, 3)), tuple(rng.uniform(0, 255, 3))
        scene = dataclasses.replace(scene, colour=any_colour, background=any_ground)
    return render_moving_shape(scene, frames=stretch)


def blobs(rng: np.random.Generator, stretch: slice) -> np.ndarray:
    """Soft blobs that drift over a moving colour gradient: uint8 [frames, 64, 64, 3]."""
    grid = (np.arange(64, dtype=np.float32) + 0.5) / 64
    y, x = grid[None, :, None, None], grid[None, None, :, None]
    time = np.linspace(0, 1, 17, dtype=np.float32)[stretch, None, None, None]
    turn = 2 * np.pi * (rng.uniform(-1.5, 1.5) * x + rng.uniform(-1.5, 1.5) * y + rng.uniform(-0.5, 0.5) * time)
    picture = rng.uniform(40, 200, 3) + rng.uniform(0, 50) * np.sin(turn + rng.uniform(0, 6, 3))
    for _ in range(rng.integers(1, 6)):
        cx = rng.uniform(0, 1) + rng.uniform(-0.4, 0.4) * time
        cy = rng.uniform(0, 1) + rng.uniform(-0.4, 0.4) * time
        distance = np.sqrt(((x - cx) / rng.uniform(0.05, 0.3)) ** 2 + ((y - cy) / rng.uniform(0.05, 0.3)) ** 2)
        cover = 1 / (1 + np.exp(np.clip((distance - 1) * rng.uniform(3, 30), -30, 30)))
        picture = picture * (1 - cover) + rng.uniform(0, 255, 3) * cover
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)


def to_tensor(video: np.ndarray) -> torch.Tensor:
    """uint8 [B, T, H, W, 3] to float32 [B, 3, T, H, W] in [-1, 1]."""
    return torch.from_numpy(video).permute(0, 4, 1, 2, 3).float().div(127.5).sub(1.0).contiguous()
