"""A spec on its way to our settings: each row says what becomes of its keys, and the report repeats it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from worldsmith.config.declare.class_tags import class_of
from worldsmith.config.declare.configurable import Config, field_hints
from worldsmith.config.declare.value_types import is_config_class, item_hint, nested_config_classes
from worldsmith.config.dialects import Translation
from worldsmith.config.errors import ConfigError, Place, Problem, locate
from worldsmith.config.toml.text import Span
from worldsmith.config.tree.paths import Path, parse_path
from worldsmith.config.tree.reader import Reader
from worldsmith.config.words.class_choice import class_choices
from worldsmith.config.write.values import SHOWN, write
from worldsmith.dialects.form import Outcome, Stated

Tree = TypeVar("Tree", bound=Config)


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
