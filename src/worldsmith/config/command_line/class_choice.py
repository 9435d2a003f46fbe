"""Classes chosen by name: ``scheduler=LambdaLinear``, ``--scheduler LambdaLinear``, or the full dotted name."""

from __future__ import annotations

from inspect import isabstract
from typing import Any

from worldsmith.config.declare.class_tags import tag_of, trust
from worldsmith.config.declare.configurable import owner_of
from worldsmith.config.declare.value_types import nested_config_classes
from worldsmith.config.errors import Problem
from worldsmith.config.tree.paths import Path, format_path
from worldsmith.config.tree.plain import TAG
from worldsmith.config.tree.suggest import did_you_mean


def class_choices(hint: Any) -> dict[str, list[str]]:
    """Returns the classes that a config section can have, as short class name -> dotted names.

    A short name has several dotted names if several modules use it. Abstract classes, and classes of modules that are
    not imported yet, are omitted.

    Args:
        hint: Type of the config field that contains the section.
    """
    found: dict[str, list[str]] = {}
    todo = list(nested_config_classes(hint))
    while todo:
        cls = todo.pop(0)
        todo += cls.__subclasses__()
        named = owner_of(cls) or cls
        if "<locals>" in named.__qualname__ or isabstract(named):
            continue
        if tag_of(cls) not in found.setdefault(named.__name__, []):
            found[named.__name__].append(tag_of(cls))
    return found


def named_class(name: str, hint: Any, path: Path) -> str | Problem:
    """Returns the dotted name of a class that is named for a section.

    Args:
        name: Short name, or dotted name, which is returned unchanged.
        hint: Type of the field.
        path: Path of the field, for messages.

    Returns:
        The dotted name (the package of a short name is then trusted); a Problem if no class or several classes have the
        name.
    """
    if "." in name:
        return name
    choices = class_choices(hint)
    tags = choices.get(name, [])
    if len(tags) == 1:
        trust(tags[0])  # its module is imported already, and the user names it
        return tags[0]
    where = format_path(path)
    if tags:
        return Problem(where, f"several classes are named {name}", hint=f"write one of: {', '.join(tags)}")
    if len(choices) == 1:
        return Problem(where, "this is a section, not a single value", hint=f"set its fields, such as {where}.…")
    # A field that accepts any component has too many choices to list.
    listing = f"available: {', '.join(choices)}" if len(choices) <= 12 else "write it as package.module.Class"
    advice = did_you_mean(name, choices)
    hint = f"{advice} {listing}" if advice else listing
    return Problem(where, f"no class for this section is named '{name}'", hint=hint)


def named_items(items: list[Any], hint: Any, path: Path) -> list[Any] | Problem:
    """Resolves class names in a list of sections: an item can be a class name, and ``type`` can be a short name.

    Args:
        items: Plain data of the list.
        hint: Type of an item.
        path: Path of the list, for messages.

    Returns:
        The items with full dotted names; a Problem if a name cannot be resolved.
    """
    found = []
    for index, item in enumerate(items):
        name = item.get(TAG) if isinstance(item, dict) else item
        if not isinstance(name, str) or not name.isidentifier():
            found.append({TAG: name} if name is item and isinstance(name, str) else item)
            continue
        tag = named_class(name, hint, (*path, index))
        if isinstance(tag, Problem):
            return tag
        found.append({**(item if isinstance(item, dict) else {}), TAG: tag})
    return found
