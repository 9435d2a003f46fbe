"""Adherence: does the generated video show what the prompt asked for?

The prompts are those of the moving-shapes dataset: each names one colour, one shape and one direction. A plain detector
(`shape_detector`) looks at the generated frames; a video counts as right when all three attributes are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

from worldsmith.demo.moving_shapes import COLOURS, DIRECTIONS, SHAPES
from worldsmith.demo.shape_detector import detect
from worldsmith.evaluation.generated_video import GeneratedVideo
from worldsmith.evaluation.metric import Output, SampleMetric, Values
from worldsmith.files.lines import read_lines

if TYPE_CHECKING:
    import numpy as np

KNOWN = {"colour": COLOURS, "shape": SHAPES, "direction": DIRECTIONS}
ATTRIBUTES = tuple(KNOWN)
EXPECTED = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


@dataclass(frozen=True, slots=True)
class ShapePrompt:
    """One line of a ``prompts.jsonl``. `held_out` marks a combination that training never showed."""

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
    """Detected attributes of the video of one prompt; None if an attribute is unclear."""

    prompt: ShapePrompt
    colour: str | None
    shape: str | None
    direction: str | None

    @property
    def right(self) -> bool:
        return all(getattr(self, name) == getattr(self.prompt, name) for name in ATTRIBUTES)


@dataclass(frozen=True, slots=True)
class Adherence:
    """The judgements of one model over a set of prompts."""

    judgements: list[Judgement]

    @property
    def score(self) -> float:
        """Fraction of the prompts whose video is right in all three attributes."""
        return fraction(judgement.right for judgement in self.judgements)

    def by_attribute(self) -> dict[str, float]:
        return {
            name: fraction(getattr(judgement, name) == getattr(judgement.prompt, name) for judgement in self.judgements)
            for name in ATTRIBUTES
        }

    def by_novelty(self) -> dict[str, tuple[float, int]]:
        """Score and count by group: combinations that were in the training data, and those that were not."""
        groups = {
            "seen combinations": [j for j in self.judgements if not j.prompt.held_out],
            "held-out combinations": [j for j in self.judgements if j.prompt.held_out],
        }
        return {name: (fraction(j.right for j in group), len(group)) for name, group in groups.items() if group}

    def to_dict(self) -> dict:
        return {
            "adherence": self.score,
            "prompts": len(self.judgements),
            "by_attribute": self.by_attribute(),
            "by_novelty": {name: {"adherence": s, "prompts": n} for name, (s, n) in self.by_novelty().items()},
            "judgements": [
                {**asdict(j.prompt), "seen": {name: getattr(j, name) for name in ATTRIBUTES}, "right": j.right}
                for j in self.judgements
            ],
        }


def load_prompts(path: Path) -> list[ShapePrompt]:
    """Reads a ``prompts.jsonl``. Raises ValueError with file and line where a line is not such a prompt."""
    prompts = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            prompts.append(parse_prompt(line))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    if not prompts:
        raise ValueError(f"{path}: no prompts; expected one JSON object a line")
    return prompts


def parse_prompt(line: str) -> ShapePrompt:
    """Parses a line. Raises ValueError or RecursionError if it is no prompt, or names unknown attributes."""
    record, hints = json.loads(line), get_type_hints(ShapePrompt)
    if not isinstance(record, dict) or any(name not in record for name in hints):
        raise ValueError(f"expected a JSON object with {', '.join(hints)}; found {line[:80]!r}")
    for name, hint in hints.items():
        value, known = record[name], KNOWN.get(name)
        if known is not None and value not in known:
            raise ValueError(f"'{name}' must be one of {', '.join(known)}; found {value!r:.80}")
        if isinstance(value, bool) != (hint is bool) or not isinstance(value, (int, float) if hint is float else hint):
            raise ValueError(f"'{name}' must be {EXPECTED[hint]}, found {value!r:.80}")
    return ShapePrompt(**{name: record[name] for name in hints})


def judge(prompts: Sequence[ShapePrompt], videos: Sequence[np.ndarray]) -> Adherence:
    """Judges one video (uint8 ``[T, H, W, 3]``) for each prompt."""
    judgements = []
    for prompt, video in zip(prompts, videos, strict=True):
        seen = detect(video)
        judgements.append(Judgement(prompt, seen.colour, seen.shape, seen.direction))
    return Adherence(judgements)


def fraction(hits: Iterable[bool]) -> float:
    values = list(hits)
    return sum(values) / len(values) if values else 0.0


class Shapes(SampleMetric):
    """Compares the detected attributes of a moving shape with those in the `extra` of the sample."""

    outputs = {
        "adherence": Output(
            "share", "share of the videos that show the `colour`, `shape` and `direction` of their `extra`"
        )
    }
    by_default = False

    def measure(self, sample: GeneratedVideo) -> Values:
        notes = sample.args["extra"]
        if any(str(notes.get(name)) not in KNOWN[name] for name in ATTRIBUTES):
            return {"adherence": "no notes (extra) of a moving shape"}
        seen = detect(sample.video.permute(1, 2, 3, 0).numpy())
        return {"adherence": float(all(getattr(seen, name) == notes[name] for name in ATTRIBUTES))}
