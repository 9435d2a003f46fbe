"""Help for typed flags: every value of a config with its flag, type, value, origin and docstring."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from worldsmith.config.command_line.class_choice import class_choices
from worldsmith.config.declare.configurable import OPAQUE, Config, all_paths, children, field_hints, owner_of, walk
from worldsmith.config.declare.field_docs import field_docs
from worldsmith.config.declare.value_types import nested_config_classes, union_members
from worldsmith.config.errors import UserError
from worldsmith.config.tree.config_draft import Draft
from worldsmith.config.tree.paths import Path, format_path, starts_with
from worldsmith.config.tree.provenance import Provenance, origin_of, trace
from worldsmith.config.tree.read_config import UNSET
from worldsmith.config.tree.suggest import did_you_mean
from worldsmith.config.write.json_schema import has_sections
from worldsmith.config.write.values import LAUNCH_WORD, write
from worldsmith.monitor.terminal_text import text_width, wrap_words

REQUIRED = "required"
MAX_CHOICES = 8
"""Max number of classes listed for a flag; with more, the placeholder is CLASS."""
TYPES = {int: "INT", float: "NUMBER", str: "TEXT", bool: "true|false", type(None): "null", Any: "VALUE"}


def flag_help(draft: Draft, topic: str | None = None, options: Mapping[str, str] = MappingProxyType({})) -> str:
    """Returns the help text for the values of a config and for the command's own options.

    Args:
        draft: Config to which the overrides are applied, with unresolved references.
        topic: A section, or a word that is searched in names and docstrings; None: all flags.
        options: The command's own options -> help text.

    Raises:
        UserError: If `topic` is neither a section nor found in the name or description of a flag.
    """
    tree = draft.tree
    origins = trace(tree, draft.recipes(), draft.places, {})
    docs = field_docs(type(tree))
    entries = [
        entry
        for name, hint in field_hints(type(tree)).items()
        if name != OPAQUE
        for entry in _entries((name,), hint, getattr(tree, name), docs.get(name, ""), origins)
    ]
    own = [_paragraph(f"  {option}", doc) for option, doc in options.items()]
    text = [
        f"flags of {draft.source}, as: --flag TYPE = value (source of the value)",
        "- and _ are equal in flags; use --flag VALUE or --flag=VALUE; --flag means true, --no-flag false.",
        "",
    ]
    wanted = _section_path(tree, topic) if topic else None
    if wanted:
        text += [f"[{format_path(wanted)}]", *(line for path, line in entries if starts_with(path, wanted))]
    elif topic:
        found = [line for line in [*own, *(line for _, line in entries)] if _mentions(line, topic)]
        if not found:
            raise _nothing_found(tree, topic)
        text += [f"flags whose name or description has '{topic}':", *found]
    else:
        text += ["[of the command]", *own, ""] if own else []
        for name in dict.fromkeys(path[0] for path, _ in entries):
            title = f"[{name}] {docs.get(str(name), '')}".rstrip()
            text += [title, *(line for path, line in entries if path[0] == name and line), ""]
    return "\n".join(text).rstrip() + "\n"


def action_help(usage: str, draft: Draft, options: Mapping[str, str], topic: str = "") -> str:
    """Returns the help text for an action whose settings are one section.

    Args:
        usage: Text before the list of flags.
        draft: The settings.
        options: General options of the command -> help text.
        topic: Only flags that mention this word; the result is empty if no flag does.
    """
    docs = {name: " ".join(doc.split()) for name, doc in field_docs(type(draft.tree)).items()}
    origins = trace(draft.tree, [], draft.places, {})
    fields = [
        re.sub(r"^  --\S+", lambda flag: flag[0].replace("_", "-"), line)
        for name, hint in field_hints(type(draft.tree)).items()
        for _, line in _entries((name,), hint, getattr(draft.tree, name), docs.get(name, ""), origins)
    ]
    own = [_paragraph(f"  {option}", doc) for option, doc in options.items()]
    found = [line for line in [*fields, *own] if _mentions(line, topic)]
    if topic:
        return "" if not found else "\n".join([f"flags whose name or description has '{topic}':", *found, ""])
    return "\n".join([usage, "", "flags, as: --flag TYPE = value (source of the value)", *fields, "", *own, ""])


def _entries(path: Path, hint: Any, value: Any, doc: str, origins: Provenance) -> Iterator[tuple[Path, str]]:
    """Yields (path, help text) for a config value and, if it is a section or table, for all values below it.

    Args:
        path: Path of the value, which is also its flag.
        hint: Type of the field.
        value: Current value, shown as the default.
        doc: Docstring of the field.
        origins: Origin of each value by path, shown after the value.
    """
    if isinstance(value, Config):
        named = (owner_of(type(value)) or type(value)).__name__
        if owner_of(type(value)):  # a component: another class can replace it
            choices = _choices(hint, named)
            yield path, _line(path, choices, named, str(origin_of(origins, path)), doc if len(path) > 1 else "")
        elif len(path) > 1 and doc:
            yield path, f"  {format_path(path)}: {doc}"
        docs = field_docs(type(value))
        for name, inner in field_hints(type(value)).items():
            yield from _entries((*path, name), inner, getattr(value, name), docs.get(name, ""), origins)
        return
    table = next((get_args(m)[1] for m in union_members(hint) if get_origin(m) is dict), None)
    inner = table or next((get_args(m)[0] for m in union_members(hint) if get_origin(m) is list), None)
    if inner is not None and isinstance(value, (dict, list)) and has_sections(inner):
        size = f"{len(value)} entries"
        if nested_config_classes(inner) and table:
            yield path, _line((*path, "NAME"), _choices(inner, ""), size, "", doc)
        else:
            yield path, _line(path, type_name(hint), size, str(origin_of(origins, path)), doc)
        for key, entry in children(value):
            yield from _entries((*path, key), inner, entry, "", origins)
        return
    if table is not None:
        flag: Path = (*path, "KEY")
        yield path, _line(flag, type_name(table), _shown(value), str(origin_of(origins, path)), doc)
    else:
        yield path, _line(path, type_name(hint), _shown(value), str(origin_of(origins, path)), doc)


def type_name(hint: Any) -> str:
    """Returns the value placeholder of a flag: ``INT``, ``NUMBER …``, ``two_way|flex``, ``TEXT or null``."""
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
    """Returns the class names that a section of type `hint` accepts, joined by "|", or "CLASS" if there are too many.

    Base classes are omitted, except the class `current` that the section has now.
    """
    names = class_choices(hint)
    roots = {(owner_of(cls) or cls).__name__ for cls in nested_config_classes(hint) if cls.__subclasses__()}
    leaves = [name for name in names if name not in roots or name == current]
    return "|".join(leaves) if 0 < len(leaves) <= MAX_CHOICES else "CLASS"


def _line(path: Path, kind: str, value: str, origin: str, doc: str) -> str:
    flag = f"  --{format_path(path)} {kind}" + (f" = {value}" if value != REQUIRED else "")
    origin = REQUIRED if value == REQUIRED else origin
    return _paragraph(f"{flag} ({origin})" if origin else flag, doc)


def _paragraph(text: str, doc: str) -> str:
    width = text_width()
    lines = wrap_words(text, width, rest=" " * 8)
    for paragraph in re.split(r"\n\s*\n", doc):
        lines += wrap_words(paragraph, width, " " * 6, " " * 6)
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return REQUIRED if value == UNSET else write(value, LAUNCH_WORD) or "''"


def _section_path(tree: Config, topic: str) -> Path | None:
    """Returns the path of the value or section that `topic` names, else None."""
    known = topic.replace("-", "_").removeprefix("__")
    return next((path for path in all_paths(tree) if format_path(path) == known), None)


def _mentions(text: str, topic: str) -> bool:
    """Returns whether the help text of a flag mentions a topic.

    Args:
        text: Help text, with the name of the flag before " = " and its docstring after it.
        topic: Part of the name, or the beginning of a word of the docstring.
    """
    name, _, doc = text.lower().replace("-", "_").partition(" = ")
    word = topic.lower().replace("-", "_")
    return word in name or re.search(rf"\b{re.escape(word)}", doc) is not None


def _nothing_found(tree: Config, topic: str) -> UserError:
    sections = [format_path(path) for path, node in walk(tree) if path and isinstance(node, Config)]
    advice = did_you_mean(topic, sections)
    top = ", ".join(name for name in sections if "." not in name)
    return UserError(
        f"no flag has '{topic}' in its name or description; {f'{advice} ' if advice else ''}sections: {top}"
    )
