"""A procedural set of small videos: one object is dropped onto a bar, and up to four laws of physics are broken.

The rule of the scores: a clip starts from 5 and loses one point for each of the four laws in `VIOLATIONS` that it
breaks. In every round of 60 clips each score comes 12 times and each law is broken in 30 clips, so that the answer to
a question about one law is "yes" for half of the clips.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from worldsmith.data.moving_shapes import CANVAS, RGB, signed_distance

COLOURS = tuple(RGB)
SHAPES = ("square", "triangle")
# Rises: falls upwards. Passes: goes through the bar. Vanishes: is gone before the end. Changes: takes another colour.
VIOLATIONS = ("rises", "passes", "vanishes", "changes")
BAR, BAR_TONE, EDGE = 5.0, 225.0, 2.0
SUBSTEPS = 16
# What a round of clips breaks: each number of violations 12 times, and each choice of that many equally often.
ROUND = tuple(
    frozenset(broken)
    for count in range(len(VIOLATIONS) + 1)
    for broken in itertools.combinations(VIOLATIONS, count)
    for _ in range(12 // len(list(itertools.combinations(VIOLATIONS, count))))
)


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that decides the pixels of a clip. Lengths are in 1/64 of the picture's side, times in 0 to 1."""

    shape: str
    colour: str
    later_colour: str
    broken: frozenset[str]
    side: float
    x: float
    start: float
    bar: float
    fall_time: float
    bounce: float
    change_time: float
    vanish_time: float
    background: tuple[float, float, float]

    @property
    def score(self) -> int:
        """Plausibility, 5 (no law broken) to 1 (all four)."""
        return 5 - len(self.broken)

    @property
    def left(self) -> bool:
        """Whether the object is in the left half of the picture, where it stays."""
        return self.x < CANVAS / 2


def sample_scene(rng: np.random.Generator, broken: frozenset[str], colour: str, shape: str, left: bool) -> Scene:
    """A random scene of this object in one half of the picture that breaks the laws in `broken` and no others."""
    side = rng.uniform(14.0, 18.0)
    # Measured along the fall, from the side where the object starts.
    start = EDGE + side / 2 + rng.uniform(0.0, 2.0)
    bar = CANVAS / 2 + rng.uniform(0.0, 6.0)
    # Its centre keeps this distance from the picture's middle line, so that left and right are clear.
    aside = rng.uniform(4.0, CANVAS / 2 - EDGE - side / 2)
    return Scene(
        shape=shape,
        colour=colour,
        later_colour=rng.choice([other for other in COLOURS if other != colour]),
        broken=broken,
        side=side,
        x=CANVAS / 2 - aside if left else CANVAS / 2 + aside,
        start=start,
        bar=bar,
        fall_time=rng.uniform(0.22, 0.32),
        bounce=rng.uniform(0.6, 0.8),
        change_time=rng.uniform(0.25, 0.55),
        vanish_time=rng.uniform(0.65, 0.8),
        background=tuple(rng.uniform(118.0, 138.0) + rng.uniform(-4, 4, 3)),
    )


def path(scene: Scene, num_frames: int) -> np.ndarray:
    """Height of the object's centre in every frame, from the top of the picture: float64 [T].

    Constant acceleration; the object bounces off the bar, or off the picture's edge when it passes through the bar.
    """
    passes = "passes" in scene.broken
    contact = scene.bar - BAR / 2 - scene.side / 2
    stop = CANVAS - EDGE - scene.side / 2 if passes else contact
    gravity = 2 * (contact - scene.start) / scene.fall_time**2
    step = 1.0 / (SUBSTEPS * (num_frames - 1))
    at, speed, heights = scene.start, 0.0, []
    for index in range(SUBSTEPS * (num_frames - 1) + 1):
        if index % SUBSTEPS == 0:
            heights.append(at)
        at, speed = at + speed * step + gravity * step * step / 2, speed + gravity * step
        if at > stop:
            at, speed = 2 * stop - at, -scene.bounce * speed
    fallen = np.minimum(np.array(heights), stop)
    return CANVAS - fallen if "rises" in scene.broken else fallen


def render(scene: Scene, *, size: int = 64, num_frames: int = 16) -> np.ndarray:
    """The clip of a scene with anti-aliased edges: uint8 [T, H, W, 3]."""
    scale = size / CANVAS
    grid = ((np.arange(size) + 0.5) / scale).astype(np.float32)
    times = np.linspace(0.0, 1.0, num_frames)
    bar = CANVAS - scene.bar if "rises" in scene.broken else scene.bar
    background = np.broadcast_to(np.array(scene.background, np.float32), (size, size, 3))
    on_bar = np.clip(0.5 + (BAR / 2 - np.abs(grid - bar)) * scale, 0.0, 1.0)[:, None, None].astype(np.float32)
    background = background * (1 - on_bar) + np.float32(BAR_TONE) * on_bar
    frames = np.empty((num_frames, size, size, 3), np.uint8)
    for index, (time, y) in enumerate(zip(times, path(scene, num_frames))):
        outside = signed_distance(
            scene.shape, (grid - np.float32(scene.x))[None, :], (grid - np.float32(y))[:, None], scene.side / 2
        )
        cover = np.clip(0.5 - outside * scale, 0.0, 1.0)[..., None].astype(np.float32)
        if "vanishes" in scene.broken and time >= scene.vanish_time:
            cover = np.zeros_like(cover)
        changed = "changes" in scene.broken and time >= scene.change_time
        colour = np.array(RGB[scene.later_colour if changed else scene.colour], np.float32)
        frames[index] = np.clip(np.rint(background * (1 - cover) + colour * cover), 0, 255).astype(np.uint8)
    return frames
