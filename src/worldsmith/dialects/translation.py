"""Translates files of another system to our settings: rules for their keys, the translation, and its report."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from worldsmith.config.declare.class_tags import class_of
from worldsmith.config.declare.configurable import Config, field_hints
from worldsmith.config.declare.value_types import is_config_class, item_hint, nested_config_classes
from worldsmith.config.dialects import Translation
from worldsmith.config.errors import ConfigError, Place, Problem, locate
from worldsmith.config.toml.positions import Span
from worldsmith.config.tree.paths import Path, parse_path
from worldsmith.config.tree.reader import Reader
from worldsmith.config.words.class_choice import class_choices
from worldsmith.config.write.values import SHOWN, write

Tree = TypeVar("Tree", bound=Config)
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


class UnusableError(Exception):
    """A value that cannot be reckoned with, and that has been reported."""


@dataclass(frozen=True, slots=True)
class Line:
    """What became of a key."""

    key: str
    outcome: Outcome
    text: str
    stated: bool
    """The spec says it; else it is the old system's default."""
    loud: bool = False
    """To be told even so."""


@dataclass
class SpecTranslation(Translation):
    """A spec on its way to our settings, with the report. Keys are dotted."""

    spec: Stated
    sources: dict[Path, str] = field(default_factory=dict)
    """The key that each of our settings comes from."""
    lines: list[Line] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """The value of a key, which is the old system's default where the spec leaves it out.

        Raises UnusableError for one that is known to be wrong: then a row says nothing.
        """
        if self.spec.is_broken(key):
            raise UnusableError(key)
        return self.spec.get(key)

    def is_stated(self, key: str) -> bool:
        return self.spec.is_stated(key)

    def put(self, to: str, value: Any, *, source: str) -> None:
        """Sets a value of ours; mistakes in it are shown where the key `source` stands."""
        target = parse_path(to)
        self.set_value(target, value)
        self.sources[target] = source
        place = self.spec.place(source)
        self.spans[target] = Span(place, place)

    def move(
        self, key: str, to: str, outcome: Outcome, *, convert: Callable[[Any], Any] | None = None, why: str = ""
    ) -> None:
        """Takes a value to ours; None is left out."""
        value = self.get(key)
        if value is None:
            return
        try:
            value = convert(value) if convert else value
        except ValueError as error:
            self.refuse(key, str(error))
            return
        self.put(to, value, source=key)
        self.say(key, outcome, f"{to} = {shown(value)}{f'; {why}' if why else ''}")

    def say(self, key: str, outcome: Outcome, text: str, *, loud: bool = False) -> None:
        """A line of the report, of a section one for each key that is stated; a loud one is a warning too."""
        if key in self.spec.open:
            told, loud = f"{shown(self.spec.open[key])} leaves it open: {text}", outcome in ("renamed", "approximated")
            self.lines.append(Line(key, "approximated" if loud else outcome, told, stated=True, loud=loud))
            return
        below = [leaf for leaf in self.spec.keys if leaf.startswith(f"{key}.") and self.is_stated(leaf)]
        self.lines += [Line(told, outcome, text, self.is_stated(told), loud) for told in below or [key]]

    def refuse(self, key: str, message: str, way_out: str | None = None) -> None:
        """A mistake, and a line of the report."""
        self.lines.append(Line(key, "refused", message, self.is_stated(key)))
        self.problems.append(Problem(key, message, hint=way_out, place=self.spec.place(key)))

    def get_warnings(self) -> list[str]:
        """What is not quite as the spec says it."""
        changed = ("approximated", "dead")
        told = [line for line in self.lines if line.loud or (line.stated and line.outcome in changed)]
        return [f"{_where(self.spec.place(line.key))}{line.key} is {line.outcome}: {line.text}" for line in told]

    def onto(self, below: Tree, places: dict[Path, Place]) -> Tree:
        """Our settings on top of a tree, or of an action's settings; `places` receives where each was written.

        What does not fit is added to the problems.
        """
        found: list[Problem] = []
        name_classes(self.data, below)
        reader = Reader(found, merge=True, spans=self.spans, places=places)
        tree = reader.section([type(below)], below, self.data)
        self.problems += locate(found, places)
        return tree if isinstance(tree, type(below)) else below


def name_classes(data: dict[str, Any], below: Any) -> None:
    """Writes out the short class names in settings, as the fields of what they go on top of allow them.

    Args:
        data: Settings as nested tables, changed in place.
        below: A config, or its class.
    """
    hints = field_hints(below if isinstance(below, type) else type(below))
    for name, section in data.items():
        if name in hints and isinstance(section, dict):
            items = item_hint(hints[name], dict)
            tables = section.values() if nested_config_classes(items) else [section]
            for table in tables:
                name_class(table, hints[name] if table is section else items, getattr(below, name, None))


def name_class(table: Any, hint: Any, below: Any) -> None:
    """Writes out the class name of one table, and those in it."""
    if not isinstance(table, dict):
        return
    if isinstance(name := table.get("type"), str):
        if "." not in name:
            table["type"] = name = class_choices(hint)[name][0]
        below = class_of(name)
    if below is not None and is_config_class(below if isinstance(below, type) else type(below)):
        name_classes(table, below)


def translate(spec: Stated) -> SpecTranslation:
    """What a spec means here; all its mistakes are in `problems`. Rows about wrong values are left out."""
    translation = SpecTranslation(spec, problems=list(spec.problems))
    for row in spec.rows:
        with contextlib.suppress(UnusableError):
            row.act(translation, [key for key in row.keys if not row.outside or key in spec.outside])
    told = {key for row in spec.rows if row.outside for key in row.keys}
    for key in spec.outside:
        if key not in told:
            translation.say(key, "unneeded", "nothing here reads it")
    order = {key: number for number, key in enumerate(spec.keys)}
    translation.lines.sort(key=lambda line: order.get(line.key, len(order)))
    return translation


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


def require_translated(spec: Stated) -> SpecTranslation:
    """`translate`, with a ConfigError for mistakes."""
    translation = translate(spec)
    if translation.problems:
        raise ConfigError(translation.problems, where="the spec")
    return translation


def report(translation: SpecTranslation, *, defaults: bool = True) -> str:
    """The report as text: what the spec says first, then the defaults of the old system that it leaves out."""
    stated = [line for line in translation.lines if line.stated]
    counts = Counter(line.outcome for line in stated)
    summary = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    texts = [f"{translation.spec.source}: {len(stated)} keys: {summary}", *_table(stated)]
    silent = [line for line in translation.lines if not line.stated and line.outcome not in ("kept", "unneeded")]
    if defaults and silent:
        texts += ["left out, with their defaults there:", *_table(silent)]
    return "\n".join(texts) + "\n"


def shown(value: Any) -> str:
    """A value in a line of the report."""
    return write(value, SHOWN)


def _where(place: Place) -> str:
    return f"{place.file}:{place.line}: " if place.line is not None else ""


def _table(lines: Sequence[Line]) -> list[str]:
    width = max((len(line.key) for line in lines), default=0)
    return [f"  {line.outcome:<12}  {line.key:<{width}}  {line.text}" for line in lines]
