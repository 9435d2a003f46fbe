"""Marks on fields for tuning, short lists and templates: ``Annotated[float, Search(low=1e-6, high=1e-4, log=True)]``.

A mark limits no value. `search_space` collects the marks of a config; the JSON Schema contains them as ``x-automl``,
``x-depends-on``, ``x-popular`` and ``examples``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, get_args, get_origin

from worldsmith.config.declare.configurable import Config, find, walk
from worldsmith.config.declare.ranges import Mark, annotated_hints
from worldsmith.config.declare.value_types import union_members
from worldsmith.config.tree.paths import format_path, parse_path

TIMES = "times "
"""Prefix in a condition: the suggestion is a factor of the following field."""


@dataclass(frozen=True, slots=True)
class Popular(Mark):
    """Mark of a field that most users set; short lists show the field."""


@dataclass(frozen=True, slots=True)
class Example(Mark):
    """Example value of a field; for a section it is a table.

    Templates use it as the value if the field has no default, else as a comment.
    """

    value: Any = field(hash=False)
    required: bool = False
    """Whether a spec must contain the key although its class has a default; templates have the example as its value."""


@dataclass(frozen=True, slots=True)
class Search(Mark):
    """Annotation of a config field with the values that `worldsmith tune` may try: `low` to `high`, or `choices`.

    It is written as ``Annotated[float, Search(low=1e-5, high=1e-3)]``. `ratio_of` and `when` name other fields: as
    siblings, ``lora_rank``, or with dots from the root of the config, ``policy.lora.r``. If a field has several of
    these annotations, the first one whose `when` is true applies. Raises ValueError for a mark that is empty or
    contradicts itself.
    """

    low: float | None = None
    high: float | None = None
    log: bool = False
    """Sample on a logarithmic scale."""
    power_of_two: bool = False
    """Only powers of two from `low` to `high`."""
    choices: Sequence[Any] = ()
    weights: Sequence[float] = ()
    """Sampling weight of each choice; empty: all equal."""
    ratio_of: str = ""
    """Another field: the sampled factor is multiplied by its value."""
    when: str = ""
    """``path=value``: searched only while that field has that value."""
    on: bool = False
    """Searched by default."""

    def __post_init__(self) -> None:
        span = self.low is not None and self.high is not None and self.low < self.high
        if span == bool(self.choices) or (self.choices and (self.low, self.high) != (None, None)):
            raise ValueError(f"{self}: use either low below high, or choices")
        if self.choices and (self.log or self.power_of_two):
            raise ValueError(f"{self}: log and power_of_two require low and high")
        if self.log and not (self.low or 0) > 0:
            raise ValueError(f"{self}: a logarithmic range must begin above 0")
        if self.power_of_two and not all(_is_power_of_two(end) for end in (self.low, self.high)):
            raise ValueError(f"{self}: low and high must be powers of two")
        if self.weights and (
            len(self.weights) != len(self.choices) or min(self.weights) < 0 or not sum(self.weights) > 0
        ):
            raise ValueError(f"{self}: expected one weight per choice, none negative and not all 0")
        if self.when and not all(self.condition):
            raise ValueError(f"{self}: expected a condition path=value")

    @property
    def condition(self) -> tuple[str, str]:
        """Path of the field in `when` and its required value; both empty without a condition."""
        path, _, value = self.when.partition("=")
        return path, value

    @property
    def depends_on(self) -> list[str]:
        """Paths of the other fields that this mark refers to."""
        return list(dict.fromkeys(path for path in (self.ratio_of, self.condition[0]) if path))

    def candidates(self) -> list[Any]:
        """Returns all values of a mark with choices or powers of two; empty for a continuous range."""
        if not (self.power_of_two and self.low and self.high):
            return list(self.choices)
        return [2**n for n in range(int(self.low).bit_length() - 1, int(self.high).bit_length())]

    def applies(self, tree: Config) -> bool:
        """Returns whether the condition holds in a config; True without a condition."""
        path, wanted = self.condition
        value = find(tree, parse_path(path)) if path else ""
        return (value if isinstance(value, str) else json.dumps(value)) == wanted

    def json_schema(self) -> dict[str, Any]:
        """Returns the JSON schema extension ``x-automl``."""
        scale = "choice" if self.choices else "power_of_two" if self.power_of_two else "log" if self.log else "linear"
        said = {"minimum": self.low, "maximum": self.high, "choices": list(self.choices), "weights": list(self.weights)}
        cond = [*([self.when] if self.when else []), *([f"{TIMES}{self.ratio_of}"] if self.ratio_of else [])]
        return {
            "enabled": self.on,
            "scale": scale,
            **{name: value for name, value in said.items() if value not in (None, [])},
            **({"cond": " and ".join(cond)} if cond else {}),
        }


@dataclass(frozen=True, slots=True)
class Searched:
    """A field of a config that may be searched."""

    path: str
    """Path as in an override."""
    marks: tuple[Search, ...]
    """Range; its `ratio_of` and `when` name fields from the root."""
    hint: Any
    """The field's type with all annotations."""

    def mark(self, tree: Config) -> Search | None:
        """Returns the mark that applies in a config; None if the field is not searched there."""
        return next((mark for mark in self.marks if mark.applies(tree)), None)


def search_space(tree: Config) -> Iterator[Searched]:
    """Yields the fields of a config that have `Search` marks, in config order."""
    for path, section in walk(tree):
        if not isinstance(section, Config):
            continue
        for name, hint in annotated_hints(type(section)).items():
            marks = tuple(mark for mark in marks_of(hint) if isinstance(mark, Search))
            if marks:
                rooted = tuple(_rooted(mark, format_path(path)) for mark in marks)
                yield Searched(format_path((*path, name)), rooted, hint)


def marks_of(hint: Any) -> list[Mark]:
    """Returns the marks in the type of a field, also for an optional type."""
    found: list[Mark] = []
    for member in (hint,) if get_origin(hint) is Annotated else union_members(hint):
        if get_origin(member) is Annotated:
            inner, *said = get_args(member)
            found += [*marks_of(inner), *(mark for mark in said if isinstance(mark, Mark))]
    return found


def marks_schema(hint: Any) -> dict[str, Any]:
    """Returns the JSON Schema keywords for the marks in the type of a field."""
    marks = marks_of(hint)
    searches = [mark for mark in marks if isinstance(mark, Search)]
    needed = list(dict.fromkeys(path for mark in searches for path in mark.depends_on))
    cases = [mark.json_schema() for mark in searches]
    automl = {**cases[0], **({"cases": cases} if len(cases) > 1 else {})} if cases else None
    return {
        **({"x-automl": automl} if automl else {}),
        **({"x-depends-on": needed} if needed else {}),
        **({"examples": examples} if (examples := [mark.value for mark in marks if isinstance(mark, Example)]) else {}),
        **({"x-popular": True} if any(isinstance(mark, Popular) for mark in marks) else {}),
    }


def _rooted(mark: Search, section: str) -> Search:
    path, value = mark.condition
    when = f"{_from_root(path, section)}={value}" if mark.when else ""
    return replace(mark, ratio_of=_from_root(mark.ratio_of, section), when=when)


def _from_root(path: str, section: str) -> str:
    return f"{section}.{path}" if path and section and "." not in path else path


def _is_power_of_two(value: float | None) -> bool:
    return value is not None and value >= 1 and value == int(value) and int(value) & (int(value) - 1) == 0
