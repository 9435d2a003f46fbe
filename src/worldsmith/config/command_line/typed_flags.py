"""Typed flags: ``--optimizer.lr 1e-4`` for every value of a config, in any order.

Dashes and underscores are equivalent, and so are ``=`` and a space. A boolean is ``--flag``, ``--no-flag`` or ``--flag
false``; a list accepts several arguments or a literal (``0.9 0.95``, ``[0.9, 0.95]``); a section accepts the name of a
class, whose fields become flags. Flags and overrides are applied and reported by the same code.
"""

from __future__ import annotations

import copy
import enum
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, get_origin

from worldsmith.config.command_line.class_choice import class_choices
from worldsmith.config.command_line.literals import Literal, Scalar, literal_list
from worldsmith.config.command_line.overrides import RECIPE_WORDS, Override, apply_overrides, to_tree_path
from worldsmith.config.declare.configurable import Config, all_paths, field_hints
from worldsmith.config.declare.value_types import holds_sections, item_hint, nested_config_classes, union_members
from worldsmith.config.errors import Place, Problem
from worldsmith.config.tree.paths import Path, format_path, parse_path, starts_with
from worldsmith.config.tree.suggest import did_you_mean, did_you_mean_path


@dataclass(frozen=True, slots=True)
class TypedFlag:
    """One flag as given on the command line: its name without dashes, and the arguments that follow it (`values`)."""

    name: str
    values: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        """Position of the flag on the command line, for messages."""
        shown = " ".join((f"--{self.name}", *self.values)).encode("utf-8", "replace").decode()
        return Place("flag", None, 1, len(shown), shown)


class FlagKind(enum.Enum):
    """Arguments that a flag accepts: one value; optionally true or false (a switch); any number of values (a list)."""

    VALUE = "value"
    SWITCH = "switch"
    LIST = "list"


def read_flags(
    tree: Config | None,
    flags: Sequence[TypedFlag],
    problems: list[Problem],
    *,
    own: Collection[str] = (),
    verbatim: bool = False,
) -> list[Override]:
    """Converts the flags of config fields to overrides.

    Args:
        tree: Unresolved config that the flags change; it is not modified. None (its file has mistakes): no overrides.
        flags: Flags with their arguments.
        problems: Receives the mistakes.
        own: Options of the command itself, for suggestions.
        verbatim: Whether a string field gets the argument unchanged, with its quotes and brackets.

    Returns:
        The overrides: first those that select the class of a section, then those that set values, in the order given.
    """
    return [] if tree is None else _FlagReader(copy.deepcopy(tree), problems, own, verbatim).read(flags)


def flag_kind(tree: Config, name: str) -> FlagKind | None:
    """Returns which arguments a flag accepts.

    Args:
        tree: Config whose fields are flags.
        name: Name of the flag, without leading dashes.

    Returns:
        The type of its arguments; None if the config has no such flag.
    """
    reader = _FlagReader(tree, [], ())
    parts = reader.parts(TypedFlag(name))
    target, negated = reader.find(parts) if parts else (None, False)
    if target is None:
        return None
    kinds = [get_origin(member) or member for member in _members(target.hint)]
    return FlagKind.SWITCH if negated or kinds == [bool] else FlagKind.LIST if list in kinds else FlagKind.VALUE


def take_recipe_flags(flags: Sequence[TypedFlag]) -> tuple[list[Override], list[TypedFlag]]:
    """Separates the flags that select the recipe from the others.

    Returns:
        The flags that select the recipe, as overrides, and the other flags.
    """
    choosing = [flag for flag in flags if tuple(flag.name.split(".")) in RECIPE_WORDS]
    found = [Override("", ("job", "experiment"), " ".join(flag.values), flag.place) for flag in choosing]
    return found, [flag for flag in flags if flag not in choosing]


def split_flags(words: Sequence[str], own: Collection[str]) -> tuple[list[str], list[TypedFlag]]:
    """Splits a command line into the arguments of the command and the typed flags.

    Args:
        words: Command-line arguments.
        own: Option strings of the command, such as ``--dryrun``.

    Returns:
        Arguments for the parser of the command, and flags with their values.
    """
    rest: list[str] = []
    flags: list[TypedFlag] = []
    follows_flag = False
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--") and len(word) > 2:
            follows_flag = name not in own
            if follows_flag:
                flags.append(TypedFlag(name[2:], (value,) if equals else ()))
                continue
        elif word in own:  # -h
            follows_flag = False
        if follows_flag:
            flags[-1] = TypedFlag(flags[-1].name, (*flags[-1].values, word))
        else:
            rest.append(word)
    return rest, flags


def take_source(flags: list[TypedFlag], is_source: Callable[[str], bool]) -> str | None:
    """Removes the first argument that names a config source (recipe or file) from the flags, and returns it.

    The first argument of each flag normally is its value. It is considered only if none of the following arguments of
    any flag names a source.

    Args:
        flags: Flags, modified in place.
        is_source: Returns whether an argument names a recipe or a file.

    Returns:
        The source; None if no argument is one.
    """
    for first in (1, 0):
        for index, flag in enumerate(flags):
            for position in range(first, len(flag.values)):
                if is_source(flag.values[position]):
                    left = flag.values[:position] + flag.values[position + 1 :]
                    flags[index] = TypedFlag(flag.name, left)
                    return flag.values[position]
    return None


@dataclass(frozen=True, slots=True)
class _Target:
    """The config value that a flag sets.

    Attributes:
        path: Path of the value.
        hint: Type of the value.
    """

    path: Path
    hint: Any
    new: bool = False
    """Whether the override adds a new key to a table (dict) instead of changing an existing key."""
    unused: bool = False
    """Whether the path is a key of the recipe TOML that has no effect for the task of the config."""


@dataclass(slots=True)
class _FlagReader:
    """Converts the flags of a config to overrides, and collects the mistakes.

    Attributes:
        tree: Config; flags that select a class or create sections change it, so that the new fields become flags.
        problems: Mistakes so far.
        own: Options of the command itself, for suggestions.
        verbatim: Whether a string field gets the argument unchanged.
        refused: Paths of sections that could not be set; flags below them are skipped.
    """

    tree: Config
    problems: list[Problem]
    own: Collection[str]
    verbatim: bool = False
    refused: list[Path] = field(default_factory=list)

    def read(self, flags: Sequence[TypedFlag]) -> list[Override]:
        choices: list[Override] = []
        leaves: dict[int, Override] = {}
        # The flag that selects a class has a shorter path than those of its fields, so it is read before them.
        for index, flag in sorted(enumerate(flags), key=lambda pair: pair[1].name.count(".")):
            parts = self.parts(flag)
            if parts is None or any(starts_with(parts, path) for path in self.refused):
                continue
            target, negated = self.find(parts)
            if target is None:
                self.unknown(flag, parts)
            elif target.unused:
                leaves[index] = Override("", target.path, "", flag.place)
            elif nested_config_classes(target.hint) and get_origin(target.hint) not in (list, dict):
                choices += self.section(flag, target)
            elif holds_sections(target.hint):
                if (parsed := self.parse_value(flag, target, negated)) is not None:
                    choices += self.select_sections(flag, target, parsed)
            elif (parsed := self.parse_value(flag, target, negated)) is not None:
                leaves[index] = Override("++" if target.new else "", target.path, parsed, flag.place)
        return [*choices, *(leaves[index] for index in sorted(leaves))]

    def parts(self, flag: TypedFlag) -> Path | None:
        try:
            return parse_path(flag.name)
        except ValueError as error:
            self.problem(flag, str(error), hint="expected --section.field, such as --optimizer.lr")
            return None

    def find(self, parts: Path) -> tuple[_Target | None, bool]:
        """Finds the config value that a flag sets.

        Args:
            parts: Name of the flag as a path.

        Returns:
            The target (None if there is no such field), and whether the flag is a ``--no-`` flag, which sets false.
        """
        target = self.walk(parts)
        if target:
            return target, False
        for positive in _positive_paths(parts):
            target = self.walk(positive)
            if target and _members(target.hint) == [bool]:
                return target, True
        task = getattr(getattr(self.tree, "job", None), "task", None)
        known = tuple(part.replace("-", "_") if isinstance(part, str) else part for part in parts)
        meaning = to_tree_path(self.tree, known, task)
        if meaning is None:
            return _Target(known, Any, unused=True), False
        return (self.walk(meaning) if meaning != known else None), False

    def walk(self, parts: Path) -> _Target | None:
        node: Any = self.tree
        hint: Any = type(self.tree)
        path: Path = ()
        for index, part in enumerate(parts):
            key: str | int = str(part)
            if isinstance(node, Config):
                hints = field_hints(type(node))
                key = _same_name(str(part), hints)
                if key not in hints:
                    return None
                hint, node = hints[key], getattr(node, key)
            elif isinstance(node, dict):
                hint = item_hint(hint, dict)
                if not nested_config_classes(
                    hint
                ):  # a table of plain values: the rest of the path is the key, with its dots
                    key = ".".join(str(rest) for rest in parts[index:])
                    return _Target((*path, key), hint, key not in node)
                key = _same_name(str(part), node)
                if key not in node:
                    return _Target((*path, key), hint, True) if index == len(parts) - 1 else None
                node = node[key]
            elif isinstance(node, list) and re.fullmatch("[0-9]{1,9}", str(part)) and int(part) < len(node):
                key, hint = int(part), item_hint(hint, list)
                node = node[key]
            else:
                return None
            path = (*path, key)
        return _Target(path, hint)

    def parse_value(self, flag: TypedFlag, target: _Target, negated: bool) -> str | Literal | None:
        """Returns the value that a flag sets.

        Args:
            flag: Flag with its arguments.
            target: Config value that the flag sets.
            negated: Whether it is a ``--no-`` flag.

        Returns:
            Text that is parsed later, a boolean or a list; None, with an added problem, for a mistake.
        """
        members, values = _members(target.hint), flag.values
        kinds = [get_origin(member) or member for member in members]
        if negated:
            return Scalar("false") if not values else self.problem(flag, "a --no- flag must have no value")
        if not values and kinds == [bool]:
            return Scalar("true")
        if self.verbatim and values and kinds == [str] and len(values) == 1:
            return Scalar(values[0], quoted=True)
        if list in kinds or (target.hint is Any and len(values) > 1):
            if self.verbatim and values and item_hint(target.hint, list) is str:
                return [Scalar(value, quoted=True) for value in values]
            if not values:
                return self.problem(flag, "the value is missing", hint=f"for an empty list write --{flag.name} []")
            optional = type(None) in union_members(target.hint)
            if len(values) == 1 and (values[0].lstrip()[:1] == "[" or (optional and values[0] in ("null", "None"))):
                return values[0]
            try:
                return literal_list(values)
            except ValueError as error:
                return self.problem(flag, f"the value cannot be parsed: {error}")
        if len(values) == 1:
            return values[0]
        if not values:
            return self.problem(flag, "the value is missing", hint=f"write --{flag.name} VALUE")
        extra = " ".join(values[1:])
        return self.problem(
            flag, f"this flag needs one value; unexpected: '{extra}'", hint="quote text that contains spaces"
        )

    def section(self, flag: TypedFlag, target: _Target) -> list[Override]:
        """Returns a list with the override of a flag that replaces a config section.

        The argument of the flag is the class name of the new section, or a literal with its fields. The result is
        empty, with an added problem, if the flag does not have exactly one argument.
        """
        if len(flag.values) != 1:
            name, names = format_path(target.path), ", ".join(class_choices(target.hint))
            hint = f"name its class ({names}) or set a field, such as --{name}.…"
            self.problem(flag, "this is a section, not a value", hint=hint)
            return []
        return self.select_sections(flag, target, flag.values[0])

    def select_sections(self, flag: TypedFlag, target: _Target, value: str | Literal) -> list[Override]:
        """Builds the override of a flag that creates sections, and applies it so that their fields become flags.

        Args:
            flag: Flag, for the position.
            target: Config value that the flag sets.
            value: Unparsed text or literal of the new value.

        Returns:
            The override; empty, with an added problem, for a mistake.
        """
        made = Override("++" if target.new else "", target.path, value, flag.place)
        mistakes: list[Problem] = []
        apply_overrides(self.tree, [made], mistakes, [])
        self.problems += mistakes
        if mistakes:
            self.refused.append(target.path)
        return [] if mistakes else [made]

    def unknown(self, flag: TypedFlag, parts: Path) -> None:
        known = tuple(part.replace("-", "_") if isinstance(part, str) else part for part in parts)
        ours = did_you_mean(f"--{flag.name}", self.own, shown="{}") if len(parts) == 1 else None
        hint = ours or did_you_mean_path(known, all_paths(self.tree), shown="--{}")
        self.problem(flag, f"unknown flag --{flag.name}", hint=hint or "--help lists all flags")

    def problem(self, flag: TypedFlag, message: str, *, hint: str | None = None) -> Literal | None:
        """Adds a problem at the position of a flag; returns None, which stands for a flag without a valid value."""
        self.problems.append(Problem("", message, hint=hint, place=flag.place))
        return None


def _members(hint: Any) -> list[Any]:
    return [member for member in union_members(hint) if member is not type(None)]


def _same_name(part: str, names: Collection[str]) -> str:
    return part if part in names else part.replace("-", "_")


def _positive_paths(parts: Path) -> list[Path]:
    """Returns the paths that a ``--no-`` flag may set to false: ``no-a.b`` -> ``a.b``, ``a.no-b`` -> ``a.b``.

    The prefix may be in the first or the last part of the path; the result is empty without it.
    """
    found: list[Path] = []
    for index in {0, len(parts) - 1}:
        part = parts[index]
        if isinstance(part, str) and part[:3] in ("no-", "no_"):
            found.append((*parts[:index], part[3:], *parts[index + 1 :]))
    return found
