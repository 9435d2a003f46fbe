"""Ranges in field types: what `check` refuses, what the JSON Schema says, and that references pass."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated, Literal

import pytest

from worldsmith.config import Config
from worldsmith.config.declare.ranges import Count, Factor, Length, Range, annotated_hints
from worldsmith.config.declare.value_types import describe_hint
from worldsmith.config.write.json_schema import value_schema


class Limited(Config):
    steps: Count = 1
    degree: Annotated[int, Range(ge=1, also=-1)] = -1
    rate: Annotated[float, Range(gt=0, lt=0.5, why="0.1 is usual")] = 0.1
    cap: Count | None = None
    pair: Annotated[list[Annotated[float, Range(ge=0, lt=1)]], Length(2, 2)] = field(default_factory=lambda: [0.0, 0.5])
    factors: dict[str, Factor] = field(default_factory=dict)
    name: Annotated[str, Length(1)] = "a"


class Checked(Limited):
    def check(self) -> None:
        if self.steps > 10:
            raise ValueError("own check")


@pytest.mark.parametrize("cls", [Limited, Checked])
@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"steps": 0}, "steps must be at least 1, found 0"),
        ({"degree": 0}, "degree must be at least 1, or -1, found 0"),
        ({"rate": 0.5}, "rate must be above 0 and below 0.5, found 0.5; 0.1 is usual"),
        ({"rate": 0}, "rate must be above 0 and below 0.5, found 0.0; 0.1 is usual"),
        ({"cap": 0}, "cap must be at least 1, found 0"),
        ({"pair": [0.1]}, "pair must be of length 2, found [0.1]"),
        ({"pair": [0.1, 1.0]}, "pair[1] must be at least 0 and below 1, found 1.0"),
        ({"factors": {"a": -1.0}}, "factors.a must be finite and at least 0, found -1.0"),
        ({"factors": {"a": math.inf}}, "factors.a must be finite and at least 0, found inf"),
        ({"name": ""}, 'name must be of length 1 or more, found ""'),
    ],
)
def test_a_value_outside_its_range_is_refused(cls: type[Limited], values: dict[str, object], told: str) -> None:
    """Also by a class whose own check() knows nothing of ranges."""
    section = cls(**values)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be") as caught:
        section.check()
    assert str(caught.value) == told


def test_limits_themselves_references_and_null_pass() -> None:
    Checked(steps=1, degree=1, rate=0.49, cap=None, pair=[0, 0.99], factors={"a": 0}).check()
    Limited(steps="${a}", cap="${b}", pair=["${c}", 0.1], factors={"a": "${d}"}).check()  # type: ignore


def test_the_sections_own_check_still_runs() -> None:
    with pytest.raises(ValueError, match="own check"):
        Checked(steps=11).check()


@pytest.mark.parametrize(
    ("name", "schema", "words"),
    [
        ("steps", {"type": "integer", "minimum": 1}, "an integer, at least 1"),
        ("degree", {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]}, "an integer, at least 1, or -1"),
        (
            "rate",
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
            "a number, above 0 and below 0.5",
        ),
        ("cap", {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, "an integer, at least 1 or null"),
        ("name", {"type": "string", "minLength": 1}, "text, of length 1 or more"),
    ],
)
def test_the_schema_and_the_words_say_the_same(name: str, schema: dict[str, object], words: str) -> None:
    hint = annotated_hints(Limited)[name]
    assert value_schema(hint) == schema
    assert describe_hint(hint) == words


def test_lists_have_limits_and_so_have_their_items() -> None:
    schema = value_schema(annotated_hints(Limited)["pair"])
    assert (schema["minItems"], schema["maxItems"]) == (2, 2)
    assert schema["items"]["anyOf"][0] == {"type": "number", "minimum": 0, "exclusiveMaximum": 1}


def test_a_single_choice_is_a_constant() -> None:
    assert value_schema(Literal["a"]) == {"const": "a"}
    assert value_schema(Literal["a", "b"]) == {"enum": ["a", "b"]}
