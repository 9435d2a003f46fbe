"""Prompt adherence of the moving-shapes model: does the generated video show what the prompt describes?

The prompts are those of the moving-shapes dataset: each names one color, one shape and one direction. `detect` measures
these attributes in the generated frames with plain image processing, without a network. A video is correct if all three
attributes are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import get_type_hints

import numpy as np

from worldsmith.demo.moving_shapes import COLOURS, DIRECTIONS, SHAPES
from worldsmith.evaluation.generated_video import GeneratedVideo
from worldsmith.evaluation.metrics.base import Output, SampleMetric, Values
from worldsmith.files.lines import read_lines

KNOWN = {"colour": COLOURS, "shape": SHAPES, "direction": DIRECTIONS}
ATTRIBUTES = tuple(KNOWN)
EXPECTED = {str: "text", bool: "true or false", int: "an integer", float: "a number"}
# Hue angle in degrees at the middle of each color.
HUES = {"red": 0.0, "yellow": 50.0, "green": 134.0, "blue": 226.0}
HUE_TOLERANCE = 20.0
MIN_SATURATION = 0.3
MIN_CONTRAST = 40.0
MIN_AREA, MAX_AREA = 0.02, 0.35
MIN_IN_ONE_PIECE = 0.8
SQUARE_LEAN, TRIANGLE_LEAN, MIN_OVERLAP = 0.13, 0.18, 0.7
MIN_TRAVEL, MIN_STRAIGHTNESS, MAX_SIDEWAYS = 0.12, 0.8, 0.5
MIN_GOOD_FRAMES = 0.7


@dataclass(frozen=True, slots=True)
class ShapePrompt:
    """Evaluation prompt from the ``prompts.jsonl`` of a moving-shapes dataset, with the size of the video to generate.

    `held_out`: the combination of color, shape and direction does not occur in the training data.
    """

    prompt: str
    seed: int
    colour: str
    shape: str
    direction: str
    held_out: bool
    height: int
    width: int
    num_frames: int
    fps: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was detected in the video of one prompt."""

    prompt: ShapePrompt
    seen: Detection

    @property
    def right(self) -> bool:
        """Whether the detected color, shape and direction all equal those in the prompt."""
        return all(getattr(self.seen, name) == getattr(self.prompt, name) for name in ATTRIBUTES)


@dataclass(frozen=True, slots=True)
class Adherence:
    """Prompt adherence of one model: the detected attributes of the video of each prompt, and the resulting scores."""

    judgements: list[Judgement]

    @property
    def score(self) -> float:
        """Fraction of the prompts (0 to 1) whose video is correct in all three attributes."""
        return fraction(judgement.right for judgement in self.judgements)

    def by_attribute(self) -> dict[str, float]:
        """Returns the accuracy (0 to 1) of each single attribute, by attribute name: color, shape and direction."""
        return {
            name: fraction(getattr(j.seen, name) == getattr(j.prompt, name) for j in self.judgements)
            for name in ATTRIBUTES
        }

    def by_novelty(self) -> dict[str, tuple[float, int]]:
        """Returns (score, number of prompts) by group: "seen combinations" and "held-out combinations" of attributes.

        A group without prompts is omitted.
        """
        groups = {
            "seen combinations": [j for j in self.judgements if not j.prompt.held_out],
            "held-out combinations": [j for j in self.judgements if j.prompt.held_out],
        }
        return {name: (fraction(j.right for j in group), len(group)) for name, group in groups.items() if group}

    def to_dict(self) -> dict:
        """Returns JSON data: total score, number of prompts, scores by group, and a dict per prompt (`judgements`)."""
        return {
            "adherence": self.score,
            "prompts": len(self.judgements),
            "by_attribute": self.by_attribute(),
            "by_novelty": {name: {"adherence": s, "prompts": n} for name, (s, n) in self.by_novelty().items()},
            "judgements": [
                {**asdict(j.prompt), "seen": {name: getattr(j.seen, name) for name in ATTRIBUTES}, "right": j.right}
                for j in self.judgements
            ],
        }


def load_prompts(path: Path) -> list[ShapePrompt]:
    """Reads the prompts in a ``prompts.jsonl``.

    Raises:
        ValueError: If a line is not a valid prompt (with its line number), or the file has no prompts.
    """
    prompts = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            prompts.append(parse_prompt(line))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    if not prompts:
        raise ValueError(f"{path}: no prompts; expected one JSON object per line")
    return prompts


def parse_prompt(line: str) -> ShapePrompt:
    """Parses one line of a ``prompts.jsonl``.

    Raises ValueError or RecursionError if the line is not a valid prompt or has an unknown color, shape or direction.
    """
    record, hints = json.loads(line), get_type_hints(ShapePrompt)
    if not isinstance(record, dict) or any(name not in record for name in hints):
        raise ValueError(f"expected a JSON object with the keys {', '.join(hints)}; found {line[:80]!r}")
    for name, hint in hints.items():
        value, known = record[name], KNOWN.get(name)
        if known is not None and value not in known:
            raise ValueError(f"'{name}' must be one of {', '.join(known)}; found {value!r:.80}")
        if isinstance(value, bool) != (hint is bool) or not isinstance(value, (int, float) if hint is float else hint):
            raise ValueError(f"'{name}' must be {EXPECTED[hint]}, found {value!r:.80}")
    return ShapePrompt(**{name: record[name] for name in hints})


def grade_videos(prompts: Sequence[ShapePrompt], videos: Sequence[np.ndarray]) -> Adherence:
    """Detects color, shape and direction of the moving shape in each video and compares them with its prompt.

    Args:
        prompts: The prompts.
        videos: One generated video per prompt, uint8 ``[T, H, W, 3]``.

    Returns:
        The detected attributes in the order of the prompts, with the scores.
    """
    return Adherence([Judgement(prompt, detect(video)) for prompt, video in zip(prompts, videos, strict=True)])


def fraction(hits: Iterable[bool]) -> float:
    """Returns the fraction of true values; 0 if there are no values."""
    values = list(hits)
    return sum(values) / len(values) if values else 0.0


class Shapes(SampleMetric):
    """Prompt adherence metric for moving shapes: detected color, shape and direction against the expected ones.

    The expected attributes are the keys `colour`, `shape` and `direction` in the `extra` values of the sample.
    """

    outputs = {
        "adherence": Output(
            "share", "fraction of the videos that show the `colour`, `shape` and `direction` in the sample's `extra`"
        )
    }
    by_default = False

    def measure(self, sample: GeneratedVideo) -> Values:
        """Returns the value of "adherence": 1 if color, shape and direction match the sample's `extra` values, else 0.

        The value is a string with the reason if `extra` lacks an attribute or has an unknown one.
        """
        notes = sample.args["extra"]
        if any(str(notes.get(name)) not in KNOWN[name] for name in ATTRIBUTES):
            return {"adherence": "no moving-shape attributes in the sample's extra"}
        seen = detect(sample.video.permute(1, 2, 3, 0).numpy())
        return {"adherence": float(all(getattr(seen, name) == notes[name] for name in ATTRIBUTES))}


@dataclass(frozen=True, slots=True)
class Detection:
    """Color, shape and direction detected in a clip, with the measurements.

    An attribute is None if its measurement is ambiguous; `reason` then explains why.
    """

    colour: str | None
    shape: str | None
    direction: str | None
    reason: str = ""
    measurements: dict[str, float] = field(default_factory=dict)


def detect(video: np.ndarray) -> Detection:
    """Detects color, shape and direction of the moving shape in one clip.

    Args:
        video: uint8 ``[T, H, W, 3]``.

    Returns:
        The three attributes, each None if it is ambiguous, with the reason and the measurements.

    Raises:
        ValueError: If the video has another dtype or shape.
    """
    if video.ndim != 4 or video.shape[3] != 3 or video.dtype != np.uint8:
        raise ValueError(f"expected a uint8 video [T, H, W, 3], found {video.dtype} {list(video.shape)}")
    frames = video.astype(np.float32)
    cover, good = segment(frames)
    piece, core = cover > 0.5, cover > 0.75
    measurements = {"good_frames": float(good.mean())}
    if good.mean() < MIN_GOOD_FRAMES:
        return Detection(None, None, None, "no single shape is visible in enough frames", measurements)
    indices = np.flatnonzero(good)
    colour, colour_reason = read_colour(frames[indices], core[indices], measurements)
    shape, shape_reason = read_shape(cover[indices], measurements)
    direction, direction_reason = read_direction(piece[indices], indices, measurements)
    reasons = "; ".join(r for r in (colour_reason, shape_reason, direction_reason) if r)
    return Detection(colour, shape, direction, reasons, measurements)


def segment(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Segments the shape in the frames of a clip (float [T, H, W, 3], 0 to 255).

    Returns the coverage of each pixel by the shape (float [T, H, W], 0 to 1), and whether each frame has one clear
    shape (bool [T]).

    Coverage is the color distance from the median of the border, relative to the largest distance. The level 1/2 lies
    on the true outline even if the edge is blurred. Pixels that are not connected to the shape have coverage 0.
    """
    border = np.concatenate([frames[:, 0], frames[:, -1], frames[:, :, 0], frames[:, :, -1]], axis=1)
    background = np.median(border, axis=1)[:, None, None, :]
    contrast = np.linalg.norm(frames - background, axis=-1)
    strongest = np.quantile(contrast.reshape(len(frames), -1), 0.99, axis=1)[:, None, None]
    cover = np.clip(contrast / np.maximum(strongest, 1.0), 0.0, 1.0)
    above = cover > 0.5
    piece = largest_piece(above)
    area = piece.mean(axis=(1, 2))
    together = piece.sum(axis=(1, 2)) / np.maximum(above.sum(axis=(1, 2)), 1)
    good = (strongest[:, 0, 0] > MIN_CONTRAST) & (area > MIN_AREA) & (area < MAX_AREA) & (together > MIN_IN_ONE_PIECE)
    around = box_sum(piece.astype(np.int32), max(1, frames.shape[2] // 20)) > 0
    return np.where(around & (piece | ~above), cover, 0.0), good


def largest_piece(mask: np.ndarray) -> np.ndarray:
    """Returns `mask` (bool [T, H, W]) reduced to one 4-connected component per frame, that at its densest pixel."""
    density = box_sum(mask.astype(np.int32), 3) * mask
    seed = density.reshape(len(mask), -1).argmax(axis=1)
    piece = np.zeros_like(mask)
    piece.reshape(len(mask), -1)[np.arange(len(mask)), seed] = True
    piece &= mask
    while True:
        grown = piece.copy()
        grown[:, 1:] |= piece[:, :-1]
        grown[:, :-1] |= piece[:, 1:]
        grown[:, :, 1:] |= piece[:, :, :-1]
        grown[:, :, :-1] |= piece[:, :, 1:]
        grown &= mask
        if np.array_equal(grown, piece):
            return piece
        piece = grown


def box_sum(values: np.ndarray, reach: int) -> np.ndarray:
    """Returns the sums of `values` [T, H, W] over the (2·reach+1)² neighborhood of each pixel; 0 outside the image."""
    for axis in (1, 2):
        pad = [(0, 0)] * 3
        pad[axis] = (reach + 1, reach)
        total = np.pad(values, pad).cumsum(axis=axis)
        length = values.shape[axis]
        span = 2 * reach + 1
        values = np.take(total, range(span, span + length), axis) - np.take(total, range(length), axis)
    return values


def read_colour(frames: np.ndarray, core: np.ndarray, measurements: dict[str, float]) -> tuple[str | None, str]:
    """Returns (color name, "") from the hue of the shape's median color, or (None, reason) if the color is unclear.

    Args:
        frames: Frames [T, H, W, 3], 0 to 255.
        core: Mask of the inner pixels of the shape, bool [T, H, W].
        measurements: Measured values by name; those of saturation and hue are added.
    """
    inner = np.median([np.median(frame[inside], axis=0) for frame, inside in zip(frames, core)], axis=0)
    saturation = float((inner.max() - inner.min()) / max(inner.max(), 1.0))
    # The angle in the color plane that is perpendicular to gray.
    red, green, blue = inner
    hue = float(np.degrees(np.arctan2(np.sqrt(3.0) * (green - blue), 2 * red - green - blue)) % 360)
    measurements |= {"saturation": saturation, "hue": hue}
    if saturation < MIN_SATURATION:
        return None, f"the shape is gray (saturation {saturation:.2f})"
    for name, middle in HUES.items():
        if abs((hue - middle + 180) % 360 - 180) <= HUE_TOLERANCE:
            return name, ""
    return None, f"hue {hue:.0f}° is not a known color"


def read_shape(cover: np.ndarray, measurements: dict[str, float]) -> tuple[str | None, str]:
    """Returns ("square" or "triangle", "") from vertical skewness and outline, or (None, reason) if it is unclear.

    `cover` is the coverage of each pixel by the shape [T, H, W]; the measured values are added to `measurements`.
    The skewness is the third central moment of the coverage divided by the cube of its standard deviation: 0 for a
    square and 0.57 upwards for a triangle on its base. Blur rounds corners but does not change the third moment. All
    measurements are medians over the frames.
    """
    values = np.median([(*skewness(frame), *ideal_overlaps(frame > 0.5)) for frame in cover], axis=0)
    names = ("lean_sideways", "lean_upwards", "square_overlap", "triangle_overlap")
    measured = dict(zip(names, map(float, values)))
    measurements |= measured
    upwards, sideways = measured["lean_upwards"], measured["lean_sideways"]
    name = "square" if abs(upwards) < SQUARE_LEAN else "triangle" if upwards > TRIANGLE_LEAN else None
    if name is None or abs(sideways) > TRIANGLE_LEAN or measured[f"{name}_overlap"] < MIN_OVERLAP:
        return None, "the outline is unclear (" + ", ".join(f"{k} {v:.2f}" for k, v in measured.items()) + ")"
    return name, ""


def skewness(cover: np.ndarray) -> tuple[float, float]:
    """Returns the skewness of a shape's pixel coverage [H, W] along x and along y (positive: upwards)."""
    weight = np.clip(cover - 0.15, 0.0, None)
    found = []
    for axis in (0, 1):
        along = weight.sum(axis=axis)
        offset = np.arange(len(along)) - np.average(np.arange(len(along)), weights=along)
        spread = np.sqrt(max(np.average(offset**2, weights=along), 0.25))
        found.append(float(np.average(offset**3, weights=along) / spread**3))
    return found[0], -found[1]


def ideal_overlaps(mask: np.ndarray) -> tuple[float, float]:
    """Returns the IoUs of a mask (bool [H, W]) with a rectangle and with a triangle that are fitted to it.

    A fitted shape has the center of the mask and its standard deviations of x and y.
    """
    rows, columns = np.nonzero(mask)
    y, x = np.mgrid[: mask.shape[0], : mask.shape[1]]
    y, x = y - rows.mean(), x - columns.mean()
    spread_y, spread_x = max(rows.std(), 0.5), max(columns.std(), 0.5)
    # A box of side a has spread a / √12.
    square = (np.abs(x) <= np.sqrt(3) * spread_x) & (np.abs(y) <= np.sqrt(3) * spread_y)
    # A triangle on a base b with height h has spreads b / √24 and h / √18, its tip 2h/3 above and base h/3 below.
    base, height = np.sqrt(24) * spread_x, np.sqrt(18) * spread_y
    below_tip = y + 2 * height / 3
    triangle = (np.abs(x) <= base / 2 * below_tip / height) & (y <= height / 3)
    return overlap(mask, square), overlap(mask, triangle)


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the intersection over union (IoU) of two boolean masks."""
    return float((a & b).sum() / (a | b).sum())


def read_direction(piece: np.ndarray, indices: np.ndarray, measurements: dict[str, float]) -> tuple[str | None, str]:
    """Returns (direction, ""), such as ("left", ""), or (None, reason) if the motion is small or not straight.

    Args:
        piece: Mask of the shape in the T frames that show it clearly, bool [T, H, W].
        indices: Index in the clip of each frame of `piece`, int [T].
        measurements: The keys `dx` and `dy` (fractions of the image side) and `straightness` (0 to 1) are added.
    """
    height, width = piece.shape[1:]
    centres = np.array([[np.nonzero(m)[1].mean() / width, np.nonzero(m)[0].mean() / height] for m in piece])
    if len(indices) < 3:
        return None, "too few frames to measure a motion"
    time = (indices - indices.mean()) / (indices[-1] - indices[0])
    offsets = centres - centres.mean(axis=0)
    dx, dy = (time @ offsets) / (time @ time)
    axis = 0 if abs(dx) > abs(dy) else 1
    travel, sideways = (dx, dy) if axis == 0 else (dy, dx)
    residual = offsets[:, axis] - travel * time
    straightness = 1.0 - float((residual**2).sum() / max((offsets[:, axis] ** 2).sum(), 1e-12))
    measurements |= {"dx": float(dx), "dy": float(dy), "straightness": straightness}
    if abs(travel) < MIN_TRAVEL:
        return None, f"the shape hardly moves ({abs(travel):.2f} of the image side)"
    if straightness < MIN_STRAIGHTNESS or abs(sideways) > MAX_SIDEWAYS * abs(travel):
        return None, f"the motion is not along one axis (dx {dx:.2f}, dy {dy:.2f}, straightness {straightness:.2f})"
    return (("left", "right") if axis == 0 else ("up", "down"))[int(travel > 0)], ""
