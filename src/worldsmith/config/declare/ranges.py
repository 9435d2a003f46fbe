"""Ranges of numbers and lengths of fields, declared in the type: ``Annotated[int, Range(ge=1)]``.

`Config.check` checks the ranges on the resolved config, and the JSON Schema contains them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from worldsmith.config.declare.value_types import is_reference, union_members
from worldsmith.config.errors import WrongValueError
from worldsmith.config.tree.paths import Path, format_path


class Mark:
    """Base class of field annotations that do not limit the values, such as `Search`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Range:
    """Range of a number: `ge` (≥), `gt` (>), `le` (≤), `lt` (<); `also` is one allowed value outside of the range.

    `also` is for values such as -1 for "all". `finite` rejects infinity and NaN; `why` is added to the error message.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    also: int | None = None
    finite: bool = False
    why: str = ""

    def allows(self, value: Any) -> bool:
        """Returns whether a value is in the range; True for values that are not numbers."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value == self.also:
            return True
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
            and not (self.finite and not math.isfinite(value))
        )

    def __str__(self) -> str:
        named = (("at least", self.ge), ("above", self.gt), ("at most", self.le), ("below", self.lt))
        limits = " and ".join(f"{word} {limit:.6g}" for word, limit in named if limit is not None)
        text = " ".join(word for word in ("finite and" if self.finite and limits else "", limits) if word) or "finite"
        return text if self.also is None else f"{text}, or {self.also}"

    def json_schema(self) -> dict[str, Any]:
        """Returns the JSON Schema keywords for the range."""
        keywords = {"minimum": self.ge, "exclusiveMinimum": self.gt, "maximum": self.le, "exclusiveMaximum": self.lt}
        if self.finite and self.le is None and self.lt is None:
            keywords["maximum"] = sys.float_info.max  # JSON has no infinity, and this keyword needs a number
        return {name: limit for name, limit in keywords.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class Length:
    """Range of the number of list items or characters of a string; `most` None: no maximum."""

    least: int = 0
    most: int | None = None

    def allows(self, value: Any) -> bool:
        """Returns whether the length of a value is in the range; True for values that are neither lists nor strings."""
        if not isinstance(value, (list, str)):
            return True
        return self.least <= len(value) and (self.most is None or len(value) <= self.most)

    def __str__(self) -> str:
        if self.least == self.most:
            return f"of length {self.least}"
        return f"of length {self.least} or more" if self.most is None else f"of length {self.least} to {self.most}"

    def json_schema(self, kind: str) -> dict[str, Any]:
        """Returns the JSON Schema keywords for a value of type `kind`, "array" or "string"."""
        suffix = "Items" if kind == "array" else "Length"
        keywords = {f"min{suffix}": self.least, f"max{suffix}": self.most}
        return {name: limit for name, limit in keywords.items() if limit}


Count = Annotated[int, Range(ge=1)]
"""Integer ≥ 1."""
LayerCount = Annotated[int, Range(ge=1, le=1000)]
"""Number of layers of a network, limited because each layer is built as separate modules; the largest released networks
have about 100."""
NotNegative = Annotated[int, Range(ge=0)]
Seed = Annotated[int, Range(ge=0, lt=2**63)]
"""Valid seed of the random generators."""
Factor = Annotated[float, Range(ge=0, finite=True)]
"""Finite number ≥ 0."""
PositiveFactor = Annotated[float, Range(gt=0, finite=True)]
DecayRate = Annotated[float, Range(ge=0, lt=1)]
DropoutRate = Annotated[float, Range(ge=0, lt=1)]
"""Fraction of elements that dropout sets to zero."""
Share = Annotated[float, Range(ge=0, le=1)]
"""Number from 0 to 1."""


@functools.cache
def annotated_hints(cls: type) -> dict[str, Any]:
    """Returns the type of every field of a Config class by name, including annotations such as `Range`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def check_ranges(section: Any) -> None:
    """Raises WrongValueError for the first value of a config section outside of its declared range.

    References to other values are skipped.
    """
    for name, hint in _declared(section.__class__).items():
        for where, limits, value in values_outside_range(getattr(section, name), hint, (name,)):
            raise WrongValueError({format_path(where): value}, allowed=str(limits), why=getattr(limits, "why", ""))


def ranges_first(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wraps the `check` method of a section so that the declared ranges are checked first."""

    @functools.wraps(check)
    def both(self: Any) -> None:
        check_ranges(self)
        check(self)

    return both


@functools.cache
def _declared(cls: type) -> dict[str, Any]:
    return {name: hint for name, hint in annotated_hints(cls).items() if _has_limits(hint)}


def _has_limits(hint: Any) -> bool:
    return get_origin(hint) is Annotated or any(_has_limits(argument) for argument in get_args(hint))


def values_outside_range(value: Any, hint: Any, where: Path) -> Iterator[tuple[Path, Any, Any]]:
    """Yields the values of a config field that violate a limit in its type, such as `Range`.

    Args:
        value: Value of the field; a reference to another value is skipped.
        hint: Type of the field with its annotations.
        where: Path of the field.

    Yields:
        (path, limit, value); the path of a list item or table value is below `where`.
    """
    if is_reference(value):
        return
    if get_origin(hint) is Annotated:
        inner, *limits = get_args(hint)
        yield from (
            (where, limit, value) for limit in limits if not isinstance(limit, Mark) and not limit.allows(value)
        )
        yield from values_outside_range(value, inner, where)
        return
    for member in union_members(hint):
        origin, arguments = get_origin(member), get_args(member)
        if origin is list and isinstance(value, list):
            for index, item in enumerate(value):
                yield from values_outside_range(item, arguments[0], (*where, index))
        elif origin is dict and isinstance(value, dict):
            for key, item in value.items():
                yield from values_outside_range(item, arguments[1], (*where, key))
        elif origin is Annotated:
            yield from values_outside_range(value, member, where)
