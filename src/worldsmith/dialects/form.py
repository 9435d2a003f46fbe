"""A spec form: typed classes in the shape of another system's specs, and a row for what becomes of each key here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from worldsmith.config.declare.configurable import Config
from worldsmith.config.errors import Place, Problem

if TYPE_CHECKING:
    from worldsmith.dialects.translation import SpecTranslation

PARENT_KEY = "parent_job_id"
"""The key of a spec that names a run or a result, whose model replaces that of the spec."""
Outcome = Literal["kept", "renamed", "approximated", "unneeded", "refused", "dead"]
"""`kept` means the same here; `renamed` too, elsewhere; `approximated` nearly; `unneeded` asks for nothing that a run
here has or lacks; `refused` cannot be had; `dead` was ignored by the system that the spec is for."""


@dataclass(frozen=True, slots=True)
class Row:
    """What becomes of some keys. A key of a section stands for all below it."""

    keys: tuple[str, ...]
    outcome: Outcome | Literal["computed"]
    """computed: it depends on the values."""
    act: Callable[[SpecTranslation, Sequence[str]], None]
    """Says so for the keys, all of the row's, or of one outside the classes those that the spec has."""
    note: str = ""
    outside: bool = False
    """The keys are no fields of the classes: they are known, and taken out before the rest is read."""


@dataclass(frozen=True, slots=True)
class SpecForm:
    """How specs of an action are read. No key of `spec` is without a row; tests say so."""

    name: str
    spec: type[Config]
    """The root's class."""
    rows: tuple[Row, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of keys, in a file and on the command line; both dotted, an own one of at most two parts."""
    wrapper: str = ""
    """A key below which some files have everything."""
    instead: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """A key of the root that replaces sections, and what these have then where the spec leaves them out."""
    left_open: Mapping[str, Any] = field(default_factory=dict)
    """Keys with the value by which a template leaves them open: one with this value counts as left out."""
    free: tuple[str, ...] = ()
    """Sections that take further keys, unless one looks like a slip of a key that there is."""

    def row_of(self, key: str) -> Row | None:
        """The row of a dotted key: its own, else that of the nearest section above it."""
        by_key = {known: row for row in self.rows for known in row.keys}
        parts = key.split(".")
        above = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((by_key[known] for known in above if known in by_key), None)


class Stated(Protocol):
    """What was read from files of another system, as rows and the report ask for it. Keys are dotted."""

    source: str
    outside: dict[str, Any]
    open: dict[str, Any]
    problems: list[Problem]

    @property
    def rows(self) -> tuple[Row, ...]: ...

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys of values, in the order of a report."""

    def get(self, key: str) -> Any: ...

    def is_stated(self, key: str) -> bool: ...

    def is_broken(self, key: str) -> bool:
        """Whether its value, or one above or below it, is known to be wrong."""

    def place(self, key: str) -> Place: ...


def renamed(key: str, to: str, convert: Callable[[Any], Any] | None = None) -> Row:
    """The value goes to `to`; a ValueError of `convert` becomes a mistake. None is left out."""

    def act(t: SpecTranslation, keys: Sequence[str]) -> None:
        t.move(key, to, "kept" if key == to else "renamed", convert=convert)

    return Row((key,), "kept" if key == to else "renamed", act, to)


def approximated(
    key: str, to: str, why: str, convert: Callable[[Any], Any] | None = None, *, but: tuple[Any, ...] = ()
) -> Row:
    """As `renamed`, with what is different. Without `to` nothing is set, and values in `but` are as it is here."""

    def act(t: SpecTranslation, keys: Sequence[str]) -> None:
        if to:
            t.move(key, to, "approximated", convert=convert, why=why)
        elif is_one_of(t.get(key), but):
            t.say(key, "kept", "as it is here")
        else:
            t.say(key, "approximated", why)

    return Row((key,), "approximated", act, why)


def is_one_of(value: Any, others: tuple[Any, ...]) -> bool:
    """``True == 1``: the types have to agree too."""
    return any(value == other and type(value) is type(other) for other in others)


def unneeded(*keys: str, why: str, outside: bool = False) -> Row:
    """Values that ask for nothing here, whatever they are."""

    def act(t: SpecTranslation, keys: Sequence[str]) -> None:
        for key in keys:
            t.say(key, "unneeded", why)

    return Row(keys, "unneeded", act, why, outside)


def refused(*keys: str, why: str, way_out: str, but: tuple[Any, ...] = (), outside: bool = False) -> Row:
    """Values that cannot be honoured, apart from those in `but`, which ask for what there is anyway."""

    def act(t: SpecTranslation, keys: Sequence[str]) -> None:
        for key in keys:
            if not outside and is_one_of(t.get(key), but):
                t.say(key, "kept", "as it is here")
            else:
                t.refuse(key, why, way_out)

    return Row(keys, "refused", act, why, outside)


def dead(key: str, why: str) -> Row:
    """A key that the old system ignores without a word; it is no field of the classes."""

    def act(t: SpecTranslation, keys: Sequence[str]) -> None:
        for stated in keys:
            t.say(stated, "dead", why)

    return Row((key,), "dead", act, why, outside=True)


def computed(*keys: str) -> Callable[[Callable[[SpecTranslation], None]], Row]:
    """Decorates a function that says what becomes of these keys, each of them."""
    return lambda act: Row(keys, "computed", lambda t, _: act(t))
