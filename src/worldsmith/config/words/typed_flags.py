"""Typed flags: ``--optimizer.lr 1e-4`` for every value of a tree, in any order.

Dashes and underscores are the same, and so are ``=`` and a space. A truth value is ``--flag``, ``--no-flag`` or
``--flag false``; a list takes words or a literal (``0.9 0.95``, ``[0.9, 0.95]``); a section takes the name of a class
that fits it, whose fields are flags at once. A flag is turned into the override word that says the same, so that both
are typed, applied and reported by the same code.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, get_origin

from worldsmith.config.declare.class_tags import tag_of, trust
from worldsmith.config.declare.configurable import Config, field_hints, owner_of
from worldsmith.config.declare.value_types import item_hint, nested_config_classes, union_members
from worldsmith.config.errors import Problem
from worldsmith.config.tree.access import all_paths
from worldsmith.config.tree.paths import Path, format_path, parse_path, starts_with
from worldsmith.config.tree.suggest import did_you_mean, nearest, nearest_path
from worldsmith.config.words.flag_words import Flag, FlagWord, guess_word, list_item
from worldsmith.config.words.overrides import apply_overrides, parse_overrides, translate


def flags_to_words(
    tree: Config | None, flags: Sequence[Flag], problems: list[Problem], *, own: Collection[str] = ()
) -> list[str]:
    """The override words of the flags: chosen classes first, then the rest in the order given.

    `tree` is what the flags change, before it is resolved; it is not changed here. Without one (its file has mistakes)
    the words are guessed from their shape, so that the mistakes can be reported together.
    """
    if tree is None:
        return [FlagWord.of(guess_word(flag), flag) for flag in flags]
    reader = _Reader(copy.deepcopy(tree), problems, own)
    return reader.read(flags)


def class_choices(hint: Any) -> dict[str, list[str]]:
    """The classes that fit a section: short name -> dotted names (several if modules use the same name)."""
    found: dict[str, list[str]] = {}
    todo = list(nested_config_classes(hint))
    while todo:
        cls = todo.pop(0)
        todo += cls.__subclasses__()
        named = owner_of(cls) or cls
        if "<locals>" not in named.__qualname__ and tag_of(cls) not in found.setdefault(named.__name__, []):
            found[named.__name__].append(tag_of(cls))
    return found


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a flag leads: the path, the type there, and what is there now."""

    path: Path
    hint: Any
    node: Any = None
    new: bool = False
    """A key that its table does not have yet."""


@dataclass(slots=True)
class _Reader:
    tree: Config
    problems: list[Problem]
    own: Collection[str]
    refused: list[Path] = field(default_factory=list)

    def read(self, flags: Sequence[Flag]) -> list[str]:
        choices: list[str] = []
        leaves: dict[int, str] = {}
        # A class is chosen by a shorter path than its fields have: it is read before them, wherever it stands.
        for index, flag in sorted(enumerate(flags), key=lambda pair: pair[1].name.count(".")):
            parts = self.parts(flag)
            if parts is None or any(starts_with(parts, path) for path in self.refused):
                continue
            target, negated = self.find(parts)
            if target is None:
                self.unknown(flag, parts)
            elif isinstance(target, str):
                leaves[index] = FlagWord.of(target, flag)
            elif nested_config_classes(target.hint) and get_origin(target.hint) not in (list, dict):
                word = self.section(flag, target)
                choices += [FlagWord.of(word, flag)] if word else []
            else:
                word = self.leaf(flag, target, negated)
                if word is not None:
                    leaves[index] = FlagWord.of(word, flag)
        return [*choices, *(leaves[index] for index in sorted(leaves))]

    def parts(self, flag: Flag) -> Path | None:
        try:
            return parse_path(flag.name)
        except ValueError as error:
            self.problem(flag, str(error), hint="a flag is --section.field, such as --optimizer.lr")
            return None

    def find(self, parts: Path) -> tuple[_Target | str | None, bool]:
        """Where the flag leads, and whether it says no; a word for a key of the file that this task does not use."""
        target = self.walk(parts)
        if target:
            return target, False
        for positive in _without_no(parts):
            target = self.walk(positive)
            if target and _members(target.hint) == [bool]:
                return target, True
        task = getattr(getattr(self.tree, "job", None), "task", None)
        known = tuple(part.replace("-", "_") if isinstance(part, str) else part for part in parts)
        meaning = translate(self.tree, known, task)
        if meaning is None:
            return f"{format_path(known)}=null", False
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
                if not nested_config_classes(hint):  # a plain table: whatever is left is the key, dots included
                    key = ".".join(str(rest) for rest in parts[index:])
                    return _Target((*path, key), hint, node.get(key), key not in node)
                key = _same_name(str(part), node)
                if key not in node:
                    return _Target((*path, key), hint, None, True) if index == len(parts) - 1 else None
                node = node[key]
            elif isinstance(node, list) and str(part).isdigit() and int(part) < len(node):
                key, hint = int(part), item_hint(hint, list)
                node = node[key]
            else:
                return None
            path = (*path, key)
        return _Target(path, hint, node)

    def leaf(self, flag: Flag, target: _Target, negated: bool) -> str | None:
        text = self.text(flag, target, negated)
        return None if text is None else f"{'++' if target.new else ''}{format_path(target.path)}={text}"

    def text(self, flag: Flag, target: _Target, negated: bool) -> str | None:
        members, values = _members(target.hint), flag.values
        kinds = [get_origin(member) or member for member in members]
        if negated:
            return "false" if not values else self.problem(flag, "a --no- flag takes no value")
        if not values and kinds == [bool]:
            return "true"
        if list in kinds or (target.hint is Any and len(values) > 1):
            if not values:
                return self.problem(flag, "no value is given", hint=f"for an empty list write --{flag.name} []")
            optional = type(None) in union_members(target.hint)
            if len(values) == 1 and (values[0].lstrip()[:1] == "[" or (optional and values[0] == "null")):
                return values[0]
            return f"[{','.join(list_item(value) for value in values)}]"
        if len(values) == 1:
            return values[0]
        if not values:
            return self.problem(flag, "no value is given", hint=f"write --{flag.name} VALUE")
        extra = " ".join(values[1:])
        return self.problem(flag, f"this flag takes one value; what is '{extra}'?", hint="quote text that holds spaces")

    def section(self, flag: Flag, target: _Target) -> str | None:
        """The word that puts another class, or a whole literal, in the place of a section; the tree follows it."""
        name, prefix = format_path(target.path), "++" if target.new else ""
        if len(flag.values) != 1:
            hint = f"name its class ({', '.join(class_choices(target.hint))}) or set a field, such as --{name}.…"
            self.problem(flag, "this is a section, not a value", hint=hint)
            return None
        value = flag.values[0]
        if not (value.startswith("{") or "${" in value or value == "null"):
            tag = value if "." in value else self.short_class(flag, target, value)
            if tag is None:
                self.refused.append(target.path)
                return None
            value = f"{{type: {tag}}}"
        word = f"{prefix}{name}={value}"
        mistakes: list[Problem] = []
        apply_overrides(self.tree, parse_overrides([word], mistakes), mistakes, [])
        if mistakes:
            self.refused.append(target.path)
        self.problems += [Problem(p.path, p.message, p.expected, p.found, p.hint, flag.place) for p in mistakes]
        return word if not mistakes else None

    def short_class(self, flag: Flag, target: _Target, value: str) -> str | None:
        choices = class_choices(target.hint)
        tags = choices.get(value, [])
        if len(tags) == 1:
            trust(tags[0])  # it is loaded already, and the user names it
            return tags[0]
        if tags:
            return self.problem(flag, f"several classes are called {value}", hint=f"write one of: {', '.join(tags)}")
        # A field for any component at all has too many choices to list.
        listing = f"there are: {', '.join(choices)}" if len(choices) <= 12 else "write it as package.module.Class"
        advice = did_you_mean(value, choices)
        hint = f"{advice} {listing}" if advice else listing
        return self.problem(flag, f"no class that fits here is called '{value}'", hint=hint)

    def unknown(self, flag: Flag, parts: Path) -> None:
        known = tuple(part.replace("-", "_") if isinstance(part, str) else part for part in parts)
        ours = nearest(f"--{flag.name}", self.own, limit=1) if len(parts) == 1 else []
        near = nearest_path(known, all_paths(self.tree))
        best = ours[0] if ours else f"--{format_path(near)}" if near else None
        hint = f"did you mean {best}?" if best else "--help lists all flags"
        self.problem(flag, f"there is no flag --{flag.name}", hint=hint)

    def problem(self, flag: Flag, message: str, *, hint: str | None = None) -> str | None:
        """Notes a mistake; there is no word for a flag that has one."""
        self.problems.append(Problem("", message, hint=hint, place=flag.place))
        return None


def _members(hint: Any) -> list[Any]:
    return [member for member in union_members(hint) if member is not type(None)]


def _same_name(part: str, names: Collection[str]) -> str:
    return part if part in names else part.replace("-", "_")


def _without_no(parts: Path) -> list[Path]:
    """The path of the flag that ``--no-a.b`` or ``--a.no-b`` turns off."""
    found: list[Path] = []
    for index in {0, len(parts) - 1}:
        part = parts[index]
        if isinstance(part, str) and part[:3] in ("no-", "no_"):
            found.append((*parts[:index], part[3:], *parts[index + 1 :]))
    return found
