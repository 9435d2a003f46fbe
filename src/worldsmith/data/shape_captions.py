"""The words of the moving-shapes dataset: its attributes and a small grammar of captions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

COLOURS = ("red", "green", "blue", "yellow")
SHAPES = ("square", "triangle")
DIRECTIONS = ("left", "right", "up", "down")


class Attributes(NamedTuple):
    """What one clip shows."""

    colour: str
    shape: str
    direction: str


COMBINATIONS = tuple(Attributes(*names) for names in itertools.product(COLOURS, SHAPES, DIRECTIONS))

# One for each colour and each direction, two for each shape, so that training still sees every value often.
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
    """Indices into the sentence frames, the verbs and the ways to name a direction."""

    frame: int
    verb: int
    way: int


WORDINGS = tuple(Wording(*i) for i in itertools.product(range(len(FRAMES)), range(len(VERBS)), range(3)))

# Training sees every frame, every verb and every way. The held-out fifth pairs verbs with ways that they never have
# there, so that its wordings are new in the dense and in the structured caption.
HELD_OUT_WORDINGS = tuple(w for w in WORDINGS if (w.verb + w.way) % 5 == 0)
TRAIN_WORDINGS = tuple(w for w in WORDINGS if w not in HELD_OUT_WORDINGS)


def dense_caption(attributes: Attributes, wording: Wording) -> str:
    """One short sentence that names colour, shape and direction."""
    return FRAMES[wording.frame].format(
        colour=attributes.colour,
        shape=attributes.shape,
        verb=VERBS[wording.verb],
        way=WAYS[attributes.direction][wording.way],
    )


def structured_caption(attributes: Attributes, wording: Wording) -> dict[str, Any]:
    """The same content as a structured caption with two of its schema's keys."""
    motion = f"{VERBS[wording.verb]} {WAYS[attributes.direction][wording.way]}"
    return {
        "subjects": [{"description": f"{attributes.colour} {attributes.shape}"}],
        "actions": [{"description": motion}],
    }


def all_captions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every dense caption of the grammar with its structured sibling, in a fixed order."""
    for attributes in COMBINATIONS:
        for wording in WORDINGS:
            yield dense_caption(attributes, wording), structured_caption(attributes, wording)
