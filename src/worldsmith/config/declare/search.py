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
"""Prefix of a field path in the JSON Schema: the suggested value is a factor, by which this field is multiplied."""


@dataclass(frozen=True, slots=True)
class Popular(Mark):
    """Annotation of a config field that most users set; JSON Schemas mark the field with ``x-popular``."""


@dataclass(frozen=True, slots=True)
class Example(Mark):
    """Annotation of a config field with an example value; for a section, the value is a dict of its fields.

    In a generated template of a spec file (Cosmos-RL, TAO), a field without a default has the example as its value;
    for a field with a default, the example is shown in a comment.
    """

    value: Any = field(hash=False)
    required: bool = False
    """Whether a spec must contain the key although the field has a default; templates then have the example value."""


@dataclass(frozen=True, slots=True)
class Search(Mark):
    """Annotation of a config field with the values that `worldsmith tune` may try: `low` to `high`, or `choices`.

    It is written as ``Annotated[float, Search(low=1e-5, high=1e-3)]``. With `ratio_of`, the sampled number is
    multiplied by the value of another field. With `when`, the field is searched only if another field has a given
    value. The other field is named by its name in the same section, such as ``lora_rank``, or by its path from the
    root of the config, such as ``policy.lora.r``. If a field has several of these annotations, the first one whose
    condition `when` is true applies. Raises ValueError if the annotation has no values or contradicts itself.
    """

    low: float | None = None
    high: float | None = None
    log: bool = False
    """Sample on a logarithmic scale."""
    power_of_two: bool = False
    """Only powers of two from `low` to `high`."""
    choices: Sequence[Any] = ()
    weights: Sequence[float] = ()
    """Sampling weight of each item of `choices`; empty: all equal."""
    ratio_of: str = ""
    """Path of another field; the sampled number is a factor, by which the value of that field is multiplied."""
    when: str = ""
    """Condition ``path=value``: the field is searched only if the field at `path` has that value."""
    on: bool = False
    """Whether the field is searched by default."""

    def __post_init__(self) -> None:
        span = self.low is not None and self.high is not None and self.low < self.high
        if span == bool(self.choices) or (self.choices and (self.low, self.high) != (None, None)):
            raise ValueError(f"{self}: expected either low < high, or choices")
        if self.choices and (self.log or self.power_of_two):
            raise ValueError(f"{self}: log and power_of_two require low and high")
        if self.log and not (self.low or 0) > 0:
            raise ValueError(f"{self}: low must be above 0 for a logarithmic range")
        if self.power_of_two and not all(_is_power_of_two(end) for end in (self.low, self.high)):
            raise ValueError(f"{self}: low and high must be powers of two")
        if self.weights and (
            len(self.weights) != len(self.choices) or min(self.weights) < 0 or not sum(self.weights) > 0
        ):
            raise ValueError(f"{self}: expected one weight per choice, all at least 0 and one above 0")
        if self.when and not all(self.condition):
            raise ValueError(f"{self}: expected a condition path=value")

    @property
    def condition(self) -> tuple[str, str]:
        """Path of the field in `when` and the value that it must have; ("", "") without a condition."""
        path, _, value = self.when.partition("=")
        return path, value

    @property
    def depends_on(self) -> list[str]:
        """Paths of the fields in `ratio_of` and `when`, on which the values of this field depend."""
        return list(dict.fromkeys(path for path in (self.ratio_of, self.condition[0]) if path))

    def candidates(self) -> list[Any]:
        """Returns all values that a search can try: `choices` or powers of two; empty for a continuous range."""
        if not (self.power_of_two and self.low and self.high):
            return list(self.choices)
        return [2**n for n in range(int(self.low).bit_length() - 1, int(self.high).bit_length())]

    def applies(self, tree: Config) -> bool:
        """Returns whether the condition `when` holds in a config; True without a condition."""
        path, wanted = self.condition
        value = find(tree, parse_path(path)) if path else ""
        return (value if isinstance(value, str) else json.dumps(value)) == wanted

    def json_schema(self) -> dict[str, Any]:
        """Returns the content of the JSON Schema keyword ``x-automl``."""
        scale = "choice" if self.choices else "power_of_two" if self.power_of_two else "log" if self.log else "linear"
        values = {
            "minimum": self.low,
            "maximum": self.high,
            "choices": list(self.choices),
            "weights": list(self.weights),
        }
        cond = [*([self.when] if self.when else []), *([f"{TIMES}{self.ratio_of}"] if self.ratio_of else [])]
        return {
            "enabled": self.on,
            "scale": scale,
            **{name: value for name, value in values.items() if value not in (None, [])},
            **({"cond": " and ".join(cond)} if cond else {}),
        }


@dataclass(frozen=True, slots=True)
class Searched:
    """A config field with `Search` annotations, whose value `worldsmith tune` may change."""

    path: str
    """Path of the field, as in an override."""
    marks: tuple[Search, ...]
    """Annotations of the field; `ratio_of` and `when` are paths from the root of the config."""
    hint: Any
    """The field's type with all annotations."""

    def mark(self, tree: Config) -> Search | None:
        """Returns the first `Search` annotation whose condition holds in a config; None: no search of the field."""
        return next((mark for mark in self.marks if mark.applies(tree)), None)


def search_space(tree: Config) -> Iterator[Searched]:
    """Yields the fields of a config that have `Search` annotations, in config order."""
    for path, section in walk(tree):
        if not isinstance(section, Config):
            continue
        for name, hint in annotated_hints(type(section)).items():
            marks = tuple(mark for mark in search_marks(hint) if isinstance(mark, Search))
            if marks:
                rooted = tuple(_rooted(mark, format_path(path)) for mark in marks)
                yield Searched(format_path((*path, name)), rooted, hint)


def search_marks(hint: Any) -> list[Mark]:
    """Returns the annotations of a field that are a `Mark`, such as `Search` or `Example`.

    Args:
        hint: Type of the field with its annotations; each alternative of a union may have annotations.
    """
    found: list[Mark] = []
    for member in (hint,) if get_origin(hint) is Annotated else union_members(hint):
        if get_origin(member) is Annotated:
            inner, *annotations = get_args(member)
            found += [*search_marks(inner), *(mark for mark in annotations if isinstance(mark, Mark))]
    return found


def marks_schema(hint: Any) -> dict[str, Any]:
    """Returns JSON Schema keywords for the `Mark` annotations of a field.

    They are ``x-automl``, ``x-depends-on``, ``examples`` and ``x-popular``; a keyword without content is omitted.

    Args:
        hint: Type of the field with its annotations.
    """
    marks = search_marks(hint)
    searches = [mark for mark in marks if isinstance(mark, Search)]
    dependencies = list(dict.fromkeys(path for mark in searches for path in mark.depends_on))
    cases = [mark.json_schema() for mark in searches]
    automl = {**cases[0], **({"cases": cases} if len(cases) > 1 else {})} if cases else None
    return {
        **({"x-automl": automl} if automl else {}),
        **({"x-depends-on": dependencies} if dependencies else {}),
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
