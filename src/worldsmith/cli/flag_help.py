"""The help of typed flags: every value of a tree with its flag, type, value, origin and doc."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from worldsmith.config.declare.configurable import Config, field_hints, owner_of
from worldsmith.config.declare.field_docs import field_docs
from worldsmith.config.declare.value_types import nested_config_classes, union_members
from worldsmith.config.errors import UserError
from worldsmith.config.toml.recipe_toml import format_value
from worldsmith.config.tree.access import all_paths, find
from worldsmith.config.tree.draft import Draft
from worldsmith.config.tree.paths import Path, format_path, starts_with
from worldsmith.config.tree.plain import OPAQUE
from worldsmith.config.tree.provenance import Provenance, origin_of, trace
from worldsmith.config.tree.suggest import did_you_mean
from worldsmith.config.words.typed_flags import class_choices

WIDTH = 100
MOST_CHOICES = 8
"""Longer lists of classes are left out: such a field takes any component."""
TYPES = {int: "INT", float: "NUMBER", str: "TEXT", bool: "true|false", type(None): "null", Any: "VALUE"}


def flag_help(draft: Draft, section: str | None = None) -> str:
    """The text for the tree of a draft, or for one section of it. Raises UserError for a section that is not there."""
    tree = draft.tree
    origins = trace(tree, draft.recipes(), draft.places, {})
    wanted = _section_path(tree, section) if section else ()
    text = []
    docs = field_docs(type(tree))
    for name, hint in field_hints(type(tree)).items():
        path: Path = (name,)
        if name == OPAQUE or not (starts_with(wanted, path) or starts_with(path, wanted)):
            continue
        entries = [entry for entry in _entries(path, hint, getattr(tree, name), docs.get(name, ""), origins)]
        lines = [line for where, line in entries if starts_with(where, wanted)]
        text.append(f"[{name}] {docs.get(name, '')}".rstrip() if not wanted else f"[{format_path(wanted)}]")
        text += [*lines, ""]
    head = [
        f"flags of {draft.source}, as: --flag TYPE = value (who wrote it)",
        "Dashes and underscores are the same, = and a space too; true/false is also --flag and --no-flag.",
        "",
    ]
    return "\n".join([*head, *text]).rstrip() + "\n"


def _entries(path: Path, hint: Any, value: Any, doc: str, origins: Provenance) -> Iterator[tuple[Path, str]]:
    """The lines of a value and of what is below it, each with the path that it is about."""
    if isinstance(value, Config):
        named = (owner_of(type(value)) or type(value)).__name__
        choices = _choices(hint, named)
        if choices != named:
            yield path, _line(path, choices, named, str(origin_of(origins, path)), doc if len(path) > 1 else "")
        elif len(path) > 1 and doc:
            yield path, f"  {format_path(path)}: {doc}"
        docs = field_docs(type(value))
        for name, inner in field_hints(type(value)).items():
            yield from _entries((*path, name), inner, getattr(value, name), docs.get(name, ""), origins)
        return
    table = next((get_args(m)[1] for m in union_members(hint) if get_origin(m) is dict), None)
    if table is not None and isinstance(value, dict) and nested_config_classes(table):
        yield path, _line((*path, "NAME"), _choices(table, ""), f"{len(value)} entries", "", doc)
        for key, entry in value.items():
            yield from _entries((*path, key), table, entry, "", origins)
        return
    if table is not None:
        flag: Path = (*path, "KEY")
        yield path, _line(flag, type_name(table), _shown(value), str(origin_of(origins, path)), doc)
    else:
        yield path, _line(path, type_name(hint), _shown(value), str(origin_of(origins, path)), doc)


def type_name(hint: Any) -> str:
    """What a flag of this type takes: ``INT``, ``NUMBER …``, ``two_way|flex``, ``TEXT or null``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "|".join(str(choice) for choice in arguments)
    if origin is list:
        return f"{type_name(arguments[0])} …"
    if origin is dict:
        return f"{{KEY: {type_name(arguments[1])}}}"
    members = union_members(hint)
    if len(members) > 1:
        return " or ".join(type_name(member) for member in members)
    return "CLASS" if nested_config_classes(hint) else TYPES.get(hint, str(hint))


def _choices(hint: Any, current: str) -> str:
    """The classes that may stand in a section: those without subclasses, and the current one (alone: no choice)."""
    names = class_choices(hint)
    roots = {(owner_of(cls) or cls).__name__ for cls in nested_config_classes(hint) if cls.__subclasses__()}
    leaves = [name for name in names if name not in roots or name == current]
    return "|".join(leaves) if 0 < len(leaves) <= MOST_CHOICES else "CLASS"


def _line(path: Path, kind: str, value: str, origin: str, doc: str) -> str:
    flag = f"  --{format_path(path)} {kind} = {value}"
    text = f"{flag} ({origin})" if origin else flag
    lines = textwrap.wrap(text, WIDTH, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False)
    for paragraph in doc.splitlines():
        lines += textwrap.wrap(paragraph, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return "''" if value == "" else format_value(value)


def _section_path(tree: Config, section: str) -> Path:
    names = {format_path(path): path for path in all_paths(tree)}
    known = section.replace("-", "_").removeprefix("__")
    if known in names and find(tree, names[known]) is not None:
        return names[known]
    sections = [name for name, path in names.items() if isinstance(find(tree, path), Config)]
    top = ", ".join(name for name in sections if "." not in name)
    advice = did_you_mean(known, sections)
    raise UserError(f"there is no section '{section}'; {f'{advice} ' if advice else ''}sections: {top}")
