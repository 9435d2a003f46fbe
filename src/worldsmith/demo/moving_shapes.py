"""The moving-shapes dataset: one colored shape moves in one direction over a plain background, with captions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from worldsmith.data.video_writer import write_video
from worldsmith.demo.synthetic_dataset import SPLITS, SyntheticDataset

CANVAS = 64.0
MARGIN = 2.0
RGB = {"red": (215, 45, 45), "green": (45, 175, 75), "blue": (55, 95, 230), "yellow": (230, 200, 50)}
STEP = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
PROMPT_STREAM = 2
JSONL_NAME = "video_dataset_file.jsonl"
COLOURS = ("red", "green", "blue", "yellow")
SHAPES = ("square", "triangle")
DIRECTIONS = ("left", "right", "up", "down")


class Attributes(NamedTuple):
    """Color, shape and direction of one clip."""

    colour: str
    shape: str
    direction: str


COMBINATIONS = tuple(Attributes(*names) for names in itertools.product(COLOURS, SHAPES, DIRECTIONS))

# One for each color and each direction, two for each shape, so that training still sees every value often.
HELD_OUT_COMBINATIONS = (
    Attributes("red", "square", "up"),
    Attributes("green", "triangle", "left"),
    Attributes("blue", "square", "right"),
    Attributes("yellow", "triangle", "down"),
)
TRAIN_COMBINATIONS = tuple(c for c in COMBINATIONS if c not in HELD_OUT_COMBINATIONS)

FRAMES = (
    "A {colour} {shape} {verb} {way}.",
    "The {colour} {shape} {verb} {way} slowly.",
    "One {colour} {shape} {verb} {way} on a plain background.",
    "A plain background where a {colour} {shape} {verb} {way}.",
    "Against a dark backdrop, a {colour} {shape} {verb} {way}.",
)
VERBS = ("moves", "slides", "glides", "drifts", "travels")
WAYS = {
    "left": ("to the left", "leftward", "left"),
    "right": ("to the right", "rightward", "right"),
    "up": ("to the top", "upward", "up"),
    "down": ("to the bottom", "downward", "down"),
}


class Wording(NamedTuple):
    """Wording of a caption: indices of a sentence template, a verb and a phrase for the direction."""

    frame: int
    verb: int
    way: int


WORDINGS = tuple(Wording(*i) for i in itertools.product(range(len(FRAMES)), range(len(VERBS)), range(3)))

# Training captions have every template, verb and direction phrase. The held-out fifth combines verbs with direction
# phrases that never occur together in training, so that dense and structured captions are both new.
HELD_OUT_WORDINGS = tuple(w for w in WORDINGS if (w.verb + w.way) % 5 == 0)
TRAIN_WORDINGS = tuple(w for w in WORDINGS if w not in HELD_OUT_WORDINGS)


@dataclass(frozen=True)
class MovingShapes(SyntheticDataset):
    """Parameters of a moving-shapes dataset for training a generator, written as train/, val/ and prompts.jsonl."""

    kind = "moving-shapes"
    format_version = 3
    min_frames = 5
    contents = (*SPLITS, "prompts.jsonl")

    clips: int = 700
    val_clips: int = 64

    def check(self, out: Path | None = None) -> None:
        """Raises ValueError for invalid parameters, a frame count other than 4k+1, or too little disk space."""
        super().check(out)
        if self.num_frames % 4 != 1:
            near = (self.num_frames - 1) // 4 * 4 + 1
            raise ValueError(
                f"{self.kind}: num_frames must be 4k+1 for the video VAE, found {self.num_frames}; {near} works"
            )

    def write(self, out: Path, clip_written: Callable[[], None]) -> dict[str, Any]:
        """Writes the clips of both splits and prompts.jsonl into `out`; calls `clip_written` after each clip.

        Returns the numbers of clips and prompts and the held-out combinations, for dataset.json.
        """
        for split, clips in self.counts.items():
            records = []
            (out / split / "videos").mkdir(parents=True)
            for index in range(clips):
                scene, wording = draw_clip(self, split, index)
                record = clip_record(self, split, index, scene, wording)
                frames = render_moving_shape(scene, size=self.size, num_frames=self.num_frames)
                write_video(out / split / record["vision_path"], frames, self.fps, crf=10, preset="veryfast")
                records.append(record)
                clip_written()
            write_jsonl(out / split / JSONL_NAME, records)
        write_jsonl(out / "prompts.jsonl", prompts(self))
        return {
            "splits": self.counts,
            "prompts": len(COMBINATIONS),
            "held_out_combinations": [list(c) for c in HELD_OUT_COMBINATIONS],
            "held_out_wordings": len(HELD_OUT_WORDINGS),
        }


@dataclass(frozen=True, slots=True)
class Scene:
    """Parameters that determine the pixels of a clip of a moving shape. Lengths are in 1/64 of the image side."""

    attributes: Attributes
    side: float
    start: tuple[float, float]
    travel: float
    wobble: float
    wobble_phase: float
    colour: tuple[float, float, float]
    background: tuple[float, float, float]
    gradient: tuple[float, float]


def sample_scene(
    rng: np.random.Generator,
    attributes: Attributes,
    *,
    sides: tuple[float, float] = (25.0, 31.0),
    tones: tuple[float, ...] = (30.0, 50.0, 70.0),
    travels: tuple[float, float] = (24.0, 28.0),
    wander: float = 0.25,
) -> Scene:
    """Returns a random scene that shows `attributes`: the shape crosses the image and stays inside it.

    Args:
        rng: Random generator.
        attributes: Color, shape and direction.
        sides: Minimum and maximum side of the shape, in 1/64 of the image side, as all lengths here.
        tones: Gray levels (0 to 255); the background is close to one of them.
        travels: Minimum and maximum length of the path.
        wander: Range of the random offset from a centered path, as a fraction (0 to 1) of the free space.
    """
    side = rng.uniform(*sides)
    low, high = MARGIN + side / 2, CANVAS - MARGIN - side / 2
    travel = rng.uniform(travels[0], min(travels[1], high - low))
    along = (low + high - travel) / 2 + wander * (high - low - travel) * rng.uniform(-0.5, 0.5)
    across = (low + high) / 2 + wander * (high - low) * rng.uniform(-0.5, 0.5)
    dx, dy = STEP[attributes.direction]
    first = along if dx + dy > 0 else along + travel
    tone = rng.choice(tones) + rng.uniform(-8, 8)
    return Scene(
        attributes=attributes,
        side=side,
        start=(first, across) if dx else (across, first),
        travel=travel,
        wobble=rng.uniform(0.0, 1.0),
        wobble_phase=rng.uniform(0.0, 2 * np.pi),
        colour=tuple(np.array(RGB[attributes.colour]) + rng.uniform(-12, 12, 3)),
        background=tuple(tone + rng.uniform(-4, 4, 3)),
        gradient=tuple(rng.uniform(-10, 10, 2)),
    )


def render_moving_shape(
    scene: Scene, *, size: int = 64, num_frames: int = 17, frames: slice = slice(None)
) -> np.ndarray:
    """Renders the clip of a scene with anti-aliased edges.

    Args:
        scene: The scene.
        size: Height and width in pixels.
        num_frames: Number of frames of the clip.
        frames: The frames to render; by default all.

    Returns:
        uint8 ``[T, size, size, 3]``, where T is the number of selected frames.
    """
    scale = size / CANVAS
    grid = ((np.arange(size) + 0.5) / scale).astype(np.float32)
    dx, dy = STEP[scene.attributes.direction]
    time = np.linspace(0.0, 1.0, num_frames, dtype=np.float32)[frames]
    path = scene.travel * time
    # Taken in double precision and then rounded: the last bits of a sine depend on the CPU.
    phase = (2 * np.pi * time + scene.wobble_phase).astype(np.float64)
    wobble = np.float32(scene.wobble) * np.sin(phase).astype(np.float32)
    centre_x = scene.start[0] + dx * path + abs(dy) * wobble
    centre_y = scene.start[1] + dy * path + abs(dx) * wobble
    x = (grid[None, :] - centre_x[:, None]).astype(np.float32)[:, None, :]
    y = (grid[None, :] - centre_y[:, None]).astype(np.float32)[:, :, None]
    outside = signed_distance(scene.attributes.shape, x, y, scene.side / 2)
    cover = np.clip(0.5 - outside * scale, 0.0, 1.0)[..., None].astype(np.float32)
    ramp = scene.gradient[0] * (grid / CANVAS - 0.5)[None, :] + scene.gradient[1] * (grid / CANVAS - 0.5)[:, None]
    background = np.array(scene.background, np.float32) + ramp[..., None]
    picture = background * (1 - cover) + np.array(scene.colour, np.float32) * cover
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)


def signed_distance(shape: str, x: np.ndarray, y: np.ndarray, half: float) -> np.ndarray:
    """Returns the signed distance of each pixel to the outline of a shape, negative inside.

    Args:
        shape: "square" or "triangle".
        x: Horizontal offset from the shape's center.
        y: Vertical offset, positive downwards; broadcast with `x`.
        half: Half the side of the shape's bounding box, in the unit of the offsets.
    """
    if shape == "square":
        return np.maximum(np.abs(x), np.abs(y)) - np.float32(half)
    # The triangle's slanted sides run from (0, -half) to (±half, half): normal (2, -1) / √5.
    slanted = (2 * np.abs(x) - y - half) / np.float32(np.sqrt(5.0))
    return np.maximum(slanted, y - half)


def dense_caption(attributes: Attributes, wording: Wording) -> str:
    """Returns a caption of one sentence that names color, shape and direction, in the given wording."""
    return FRAMES[wording.frame].format(
        colour=attributes.colour,
        shape=attributes.shape,
        verb=VERBS[wording.verb],
        way=WAYS[attributes.direction][wording.way],
    )


def structured_caption(attributes: Attributes, wording: Wording) -> dict[str, Any]:
    """Returns the content of `dense_caption` as a structured caption with the keys `subjects` and `actions`."""
    motion = f"{VERBS[wording.verb]} {WAYS[attributes.direction][wording.way]}"
    return {
        "subjects": [{"description": f"{attributes.colour} {attributes.shape}"}],
        "actions": [{"description": motion}],
    }


def draw_clip(dataset: MovingShapes, split: str, index: int) -> tuple[Scene, Wording]:
    """Returns the scene and the caption wording of one clip; `split` is "train" or "val".

    Both depend only on the seed of the dataset, the split and the index. All combinations of attributes are equally
    frequent: each occurs once before any occurs again, in random order.
    """
    combinations = TRAIN_COMBINATIONS if split == "train" else COMBINATIONS
    round_index, place = divmod(index, len(combinations))
    order = np.random.default_rng([dataset.seed, SPLITS[split], 0, round_index]).permutation(len(combinations))
    rng = np.random.default_rng([dataset.seed, SPLITS[split], 1, index])
    scene = sample_scene(rng, combinations[order[place]])
    wordings = TRAIN_WORDINGS if split == "train" else HELD_OUT_WORDINGS
    return scene, wordings[rng.integers(len(wordings))]


def clip_record(dataset: MovingShapes, split: str, index: int, scene: Scene, wording: Wording) -> dict[str, Any]:
    """Returns the JSON record of one clip for the dataset file of the split.

    The record has one clip window (`t2w_windows`) over all frames, with a structured and a dense caption.
    """
    uuid = f"moving-shapes-{split}-{index:05d}"
    return {
        "uuid": uuid,
        "duration": dataset.num_frames / dataset.fps,
        "width": dataset.size,
        "height": dataset.size,
        "vision_path": f"videos/{uuid}.mp4",
        "nb_frames": dataset.num_frames,
        "framerate": float(dataset.fps),
        "t2w_windows": [
            {
                "start_frame": 0,
                "end_frame": dataset.num_frames - 1,
                "temporal_interval": 1,
                "caption_json": structured_caption(scene.attributes, wording),
                "caption": dense_caption(scene.attributes, wording),
            }
        ],
        "moving_shapes": scene.attributes._asdict(),
    }


def prompts(dataset: MovingShapes) -> Iterator[dict[str, Any]]:
    """Yields the records of prompts.jsonl: one evaluation prompt per combination of color, shape and direction.

    No training caption has the wording of a prompt.
    """
    rng = np.random.default_rng([dataset.seed, PROMPT_STREAM])
    order = rng.permutation(len(HELD_OUT_WORDINGS))
    for index, attributes in enumerate(COMBINATIONS):
        wording = HELD_OUT_WORDINGS[order[index % len(order)]]
        yield {
            "prompt": dense_caption(attributes, wording),
            "caption_json": structured_caption(attributes, wording),
            "seed": 1_000_000 + 1000 * dataset.seed + index,
            **attributes._asdict(),
            "held_out": attributes in HELD_OUT_COMBINATIONS,
            "height": dataset.size,
            "width": dataset.size,
            "num_frames": dataset.num_frames,
            "fps": dataset.fps,
        }


def write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
