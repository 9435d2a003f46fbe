"""Translates config files of another system to our settings: rules for their keys, the translation, and its report."""

from __future__ import annotations

import contextlib
import functools
import tomllib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Literal, TypeVar, get_args

from worldsmith.config.command_line.class_choice import class_choices
from worldsmith.config.declare.class_tags import class_of
from worldsmith.config.declare.configurable import Config, field_hints
from worldsmith.config.declare.value_types import is_config_class, item_hint, nested_config_classes
from worldsmith.config.dialects import Translation
from worldsmith.config.errors import ConfigError, Place, Problem, locate
from worldsmith.config.toml.toml_text import Span
from worldsmith.config.tree.paths import Path, parse_path
from worldsmith.config.tree.read_config import Reader
from worldsmith.config.write.values import SHOWN, write

Tree = TypeVar("Tree", bound=Config)
PARENT_KEY = "parent_job_id"
"""Spec key that names an earlier run or result, whose model replaces the model of the spec."""
RULE_FILE = "key_rules.toml"
"""File in the folder of each foreign config format; it has the rules of the keys that need no code."""
Outcome = Literal["kept", "renamed", "approximated", "unneeded", "refused", "dead"]
"""`kept`: the same meaning here. `renamed`: the same meaning under another name. `approximated`: nearly the same.
`unneeded`: requests something that every run here does. `refused`: not supported. `dead`: ignored by the system that
the spec is for."""
NoEffect = Literal["approximated", "unneeded", "refused", "dead"]
"""Outcomes of keys that set no setting of Worldsmith."""


class UnusableError(Exception):
    """Raised by `SpecTranslation.get` for a value that is known to be invalid and was reported already."""


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Rule that translates one or more keys of another system's config to settings of Worldsmith.

    The key of a section stands for all keys below it.
    """

    keys: tuple[str, ...]
    outcome: Outcome | Literal["computed"]
    """Outcome of the keys; computed: it depends on the values."""
    apply: Callable[[SpecTranslation], None]
    """Sets settings in a translation and reports the outcome of each key."""
    note: str = ""
    outside: bool = False
    """Whether the keys are known but not fields of the spec classes; they are removed before the others are read.

    Such a rule has one key, and is applied only if the spec has that key.
    """


@dataclass(frozen=True, slots=True)
class SpecForm:
    """Spec format of one action: the config class of its spec files, and the rules that translate their keys.

    Every key of `spec` has a rule.
    """

    name: str
    spec: type[Config]
    """Config class of the complete spec."""
    rules: tuple[KeyRule, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Aliases in files and on the command line: alias -> key. Both are dotted; an alias has at most two parts."""
    wrapper: str = ""
    """Top-level key that may enclose the complete spec; "" = no such key."""
    instead: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Top-level key -> default values by section (section -> key -> value) that apply only if the spec sets this key.

    It makes keys of these sections optional: `datasets` replaces `dataset`, for example.
    """
    left_open: Mapping[str, Any] = field(default_factory=dict)
    """Keys with their placeholder value in templates: a key with this value counts as omitted."""
    free: tuple[str, ...] = ()
    """Sections that accept unknown keys, unless the key looks like a typo of a known one."""


@dataclass(slots=True)
class ForeignSpec(ABC):
    """Base class of a config that was read from files of another system. Keys are dotted, such as `train.epoch`."""

    source: str
    rules: tuple[KeyRule, ...]
    outside: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """Values of the keys that have a rule but no field in the spec classes."""
    open: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """Keys that still have the placeholder value of a template, with this value."""
    problems: list[Problem] = field(default_factory=list, kw_only=True)

    @property
    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """Dotted keys of all values (not of sections), in the order of the report."""

    @abstractmethod
    def get(self, key: str) -> Any:
        """Returns the value of a dotted key; the other system's default if the files omit the key."""

    @abstractmethod
    def default(self, key: str) -> Any:
        """Returns the value that the other system uses for an omitted key; None for a required key."""

    @abstractmethod
    def is_stated(self, key: str) -> bool:
        """Returns whether the files or the command line set the key, or a key below it."""

    @abstractmethod
    def is_broken(self, key: str) -> bool:
        """Returns whether the value of a key, of a section above it or of a key below it is known to be invalid."""

    @abstractmethod
    def place(self, key: str) -> Place:
        """Returns the file and line that set the key; for an omitted key, a `Place` that only names the key."""

    def is_override(self, key: str) -> bool:
        """Returns whether an override on the command line sets the key, or a key below it."""
        return self.is_stated(key) and self.place(key).file == "override"


@dataclass(frozen=True, slots=True)
class ReportLine:
    """Line of the translation report: the outcome of one key."""

    key: str
    outcome: Outcome
    text: str
    stated: bool
    """Whether the spec sets the key; otherwise its value is the other system's default."""
    warn: bool = False
    """Whether the line is also printed as a warning, even if its outcome alone does not require a warning."""


@dataclass
class SpecTranslation(Translation):
    """Translation of another system's config (`spec`) to settings of Worldsmith (`data`), filled by rules step by step.

    `lines` are its report and `problems` the mistakes. Keys and setting paths are dotted.
    """

    spec: ForeignSpec
    sources: dict[Path, str] = field(default_factory=dict)
    """Spec key that each setting comes from, by config path."""
    lines: list[ReportLine] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """Returns the value of a spec key; the other system's default if the spec omits it.

        Raises UnusableError for a value that is known to be invalid, which ends the rule that requests it.
        """
        if self.spec.is_broken(key):
            raise UnusableError(key)
        return self.spec.get(key)

    def is_stated(self, key: str) -> bool:
        return self.spec.is_stated(key)

    def put(self, to: str, value: Any, *, source: str) -> None:
        """Sets a setting in `data` without a report line.

        Args:
            to: Dotted path of the setting.
            value: Value of the setting, as plain data.
            source: Spec key to which mistakes in the value are attributed.
        """
        target = parse_path(to)
        self.set_value(target, value)
        self.sources[target] = source
        place = self.spec.place(source)
        self.spans[target] = Span(place, place)

    def move(
        self, key: str, to: str, outcome: Outcome, *, convert: Callable[[Any], Any] | None = None, why: str = ""
    ) -> None:
        """Sets a setting to the value of a spec key and reports it; does nothing if the value is None.

        Args:
            key: Key of the spec.
            to: Dotted path of the setting.
            outcome: Outcome of the key in the report.
            convert: Converts the value; its ValueError becomes a problem of the key. None: unchanged.
            why: Reason, appended to the report line.
        """
        value = self.get(key)
        if value is None:
            return
        try:
            value = convert(value) if convert else value
        except ValueError as error:
            self.refuse(key, str(error))
            return
        self.assign(key, to, value, f"; {why}" if why else "", outcome=outcome)

    def assign(
        self, key: str, to: str, value: Any, note: str = "", *, outcome: Outcome = "renamed", warn: bool = False
    ) -> None:
        """Sets a setting to a value that is derived from a spec key, and reports it.

        Args:
            key: Key of the spec.
            to: Dotted path of the setting.
            value: Value of the setting.
            note: Text appended to the report line ``<to> = <value>``.
            outcome: Outcome of the key in the report.
            warn: Whether the report line is also a warning.
        """
        self.put(to, value, source=key)
        self.report(key, outcome, f"{to} = {format_value(value)}{note}", warn=warn)

    def report_stated(self, outcome: Outcome, text: str, *keys: str) -> None:
        """Adds a report line with `outcome` and `text` for each of the keys that the spec sets."""
        for key in keys:
            if self.is_stated(key):
                self.report(key, outcome, text)

    def report(self, key: str, outcome: Outcome, text: str, *, warn: bool = False) -> None:
        """Adds a line to the report; for the key of a section, one line for each key below it that the spec sets.

        Args:
            key: Key of the spec.
            outcome: Outcome of the key.
            text: Explanation.
            warn: Whether the line is also a warning.
        """
        if key in self.spec.open:
            text = f"{format_value(self.spec.open[key])} is a placeholder: {text}"
            warn = outcome in ("renamed", "approximated")
            self.lines.append(ReportLine(key, "approximated" if warn else outcome, text, stated=True, warn=warn))
            return
        below = [leaf for leaf in self.spec.keys if leaf.startswith(f"{key}.") and self.is_stated(leaf)]
        self.lines += [ReportLine(leaf, outcome, text, self.is_stated(leaf), warn) for leaf in below or [key]]

    def refuse(self, key: str, message: str, fix: str | None = None) -> None:
        """Adds a problem, with the suggestion `fix`, and a report line with the outcome "refused" for a spec key."""
        self.lines.append(ReportLine(key, "refused", message, self.is_stated(key)))
        self.problems.append(Problem(key, message, hint=fix, place=self.spec.place(key)))

    def get_warnings(self) -> list[str]:
        """Returns one warning, with source position and key, per spec key without exactly the requested effect.

        These are the keys of report lines with `warn`, and the keys that the spec sets and whose outcome is
        "approximated" (Worldsmith does nearly the same) or "dead" (the system that the spec was written for ignores the
        key too).
        """
        changed = ("approximated", "dead")
        lines = [line for line in self.lines if line.warn or (line.stated and line.outcome in changed)]
        return [f"{_where(self.spec.place(line.key))}{line.key} is {line.outcome}: {line.text}" for line in lines]

    def apply_to(self, base: Tree, places: dict[Path, Place]) -> Tree:
        """Returns the config `base`, of a run or of an action, with the translated settings (`data`).

        Args:
            base: Config that has the values of all other settings.
            places: Receives the source position of each value that is set, by config path.

        Returns:
            The changed config. Values that do not fit it are added to `problems`.
        """
        found: list[Problem] = []
        name_classes(self.data, base)
        reader = Reader(found, merge=True, spans=self.spans, places=places)
        tree = reader.section([type(base)], base, self.data)
        self.problems += locate(found, places)
        return tree if isinstance(tree, type(base)) else base


def translate(spec: ForeignSpec) -> SpecTranslation:
    """Translates a spec by applying all of its rules, and returns the translation.

    A rule ends without a message when it requests a value that is known to be invalid. Mistakes of the spec are in
    `problems` of the result.
    """
    translation = SpecTranslation(spec, problems=list(spec.problems))
    for rule in spec.rules:
        if not rule.outside or rule.keys[0] in spec.outside:
            with contextlib.suppress(UnusableError):
                rule.apply(translation)
    known = {key for rule in spec.rules if rule.outside for key in rule.keys}
    for key in spec.outside:
        if key not in known:
            translation.report(key, "unneeded", "no part of Worldsmith reads it")
    order = {key: number for number, key in enumerate(spec.keys)}
    translation.lines.sort(key=lambda line: order.get(line.key, len(order)))
    return translation


def require_translated(spec: ForeignSpec) -> SpecTranslation:
    """Translates a spec and returns the translation. Raises ConfigError with all mistakes if there are any."""
    translation = translate(spec)
    if translation.problems:
        raise ConfigError(translation.problems, where="the spec")
    return translation


def format_report(translation: SpecTranslation) -> str:
    """Returns the translation report as text, one line per key, with omitted keys whose default has an effect."""
    stated = [line for line in translation.lines if line.stated]
    counts = Counter(line.outcome for line in stated)
    summary = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    texts = [f"{translation.spec.source}: {len(stated)} keys: {summary}", *_table(stated)]
    silent = [line for line in translation.lines if not line.stated and line.outcome not in ("kept", "unneeded")]
    if silent:
        texts += ["omitted keys, with the defaults of the system for which this config was written:", *_table(silent)]
    return "\n".join(texts) + "\n"


def read_key_rules(dialect: str, *sections: str) -> tuple[KeyRule, ...]:
    """Returns the rules in the file `key_rules.toml` of another system's config format, in the order of the file.

    Args:
        dialect: Name of the format and of its folder, such as "sat".
        sections: Sections of the file, such as the names of actions.
    """
    table = _read_rule_file(dialect)
    found = [renamed(key, to) for section in sections for key, to in table["renamed"].get(section, {}).items()]
    for section in sections:
        for group in table["without_effect"].get(section, []):
            found += _rules_of_group(**group)
    return tuple(found)


@functools.cache
def _read_rule_file(dialect: str) -> dict[str, Any]:
    return tomllib.loads((FilePath(__file__).parent / dialect / RULE_FILE).read_text(encoding="utf-8"))


def _rules_of_group(*, keys: Sequence[str], under: Sequence[str] = (), **columns: Any) -> Iterator[KeyRule]:
    """Yields a `without_effect` rule for each key in `keys`; `columns` are the other arguments of `without_effect`.

    If `under` is not empty, each section in it has all of these keys. Otherwise the keys are complete dotted keys.
    """
    for section in under or [""]:
        for name in keys:
            yield without_effect(f"{section}.{name}" if section else name, **columns)


def without_effect(
    key: str,
    outcome: NoEffect,
    reason: str,
    fix: str = "",
    *,
    accepted: Sequence[Any] = (),
    accepts_default: bool = True,
    outside: bool = False,
) -> KeyRule:
    """Returns the rule of a key that sets nothing: it is approximated, refused, or irrelevant (unneeded, dead).

    Args:
        key: The dotted key.
        outcome: The outcome of values that are not accepted.
        reason: Text of the report line, warning or problem; ``{value}`` stands for a refused value.
        fix: Suggestion for a refused value; ``{key}`` stands for the key.
        accepted: Values, in addition to the default, that request what a run does anyway.
        accepts_default: Whether the other system's default requests what a run does anyway.
        outside: Whether the key is not a field of the spec classes.
    """
    if outcome not in get_args(NoEffect):
        raise ValueError(f"{key}: expected one of {', '.join(get_args(NoEffect))}, found '{outcome}'")

    def apply(t: SpecTranslation) -> None:
        if outcome in ("unneeded", "dead"):
            t.report(key, outcome, reason)
        elif not outside and is_one_of(t.get(key), [*accepted, *([t.spec.default(key)] if accepts_default else [])]):
            t.report(key, "kept", "unchanged")
        elif outcome == "refused":
            why = reason.replace("{value}", format_value(t.get(key))) if "{value}" in reason else reason
            t.refuse(key, why, fix.replace("{key}", key))
        else:
            t.report(key, outcome, reason)

    return KeyRule((key,), outcome, apply, reason, outside)


def renamed(key: str, to: str, convert: Callable[[Any], Any] | None = None, *, why: str = "") -> KeyRule:
    """Returns the rule of a key whose value is assigned to a setting; a value of None is skipped.

    Args:
        key: The dotted key.
        to: Dotted path of the setting.
        convert: Converts the value; its ValueError becomes a problem of the key. None: unchanged.
        why: Reason why the setting only approximates the key; "": both mean the same.
    """
    outcome: Outcome = "approximated" if why else "kept" if key == to else "renamed"
    return KeyRule((key,), outcome, lambda t: t.move(key, to, outcome, convert=convert, why=why), why or to)


def computed(*keys: str) -> Callable[[Callable[[SpecTranslation], None]], KeyRule]:
    """Decorator: turns a function into the rule of the given keys.

    The function translates the keys in the `SpecTranslation` that it receives, and reports the outcome of each key.
    """
    return lambda apply: KeyRule(keys, "computed", apply)


def is_one_of(value: Any, others: Sequence[Any]) -> bool:
    """Returns whether a value equals one of `others` and has the same type (`True` does not equal 1)."""
    return any(value == other and type(value) is type(other) for other in others)


def name_classes(data: dict[str, Any], base: Any) -> None:
    """Replaces short class names in settings by full names, according to the config that the settings belong to.

    Args:
        data: Settings as nested tables; modified in place.
        base: A config, or its class.
    """
    hints = field_hints(base if isinstance(base, type) else type(base))
    for name, section in data.items():
        if name in hints and isinstance(section, dict):
            items = item_hint(hints[name], dict)
            tables = section.values() if nested_config_classes(items) else [section]
            for table in tables:
                name_class(table, hints[name] if table is section else items, getattr(base, name, None))


def name_class(table: Any, hint: Any, base: Any) -> None:
    """Replaces the short class name of one table (key `type`), and those of the tables in it, by full names.

    Args:
        table: Table of settings, modified in place; values of another type are ignored.
        hint: Type of the config field that the table sets, which determines the possible classes.
        base: Config or class for a table without `type`; None: unknown.
    """
    if not isinstance(table, dict):
        return
    if isinstance(name := table.get("type"), str):
        if "." not in name:
            table["type"] = name = class_choices(hint)[name][0]
        base = class_of(name)
    if base is not None and is_config_class(base if isinstance(base, type) else type(base)):
        name_classes(table, base)


def format_value(value: Any) -> str:
    """Returns a value as JSON text for messages and report lines."""
    return write(value, SHOWN)


def _where(place: Place) -> str:
    return f"{place.file}:{place.line}: " if place.line is not None else ""


def _table(lines: Sequence[ReportLine]) -> list[str]:
    width = max((len(line.key) for line in lines), default=0)
    return [f"  {line.outcome:<12}  {line.key:<{width}}  {line.text}" for line in lines]
