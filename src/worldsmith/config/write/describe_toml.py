"""Describes every key of the recipe TOML: as a JSON Schema, and as a commented template file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from worldsmith.config.command_line.overrides import is_missing
from worldsmith.config.declare.configurable import OPAQUE, Config, find
from worldsmith.config.declare.field_docs import field_docs
from worldsmith.config.declare.ranges import annotated_hints
from worldsmith.config.declare.value_types import describe_hint, holds_sections, union_members
from worldsmith.config.recipes.registry import find_recipe, get_recipe, recipe_task
from worldsmith.config.toml.toml_schema import TASKS, TomlField, remap, toml_fields
from worldsmith.config.tree.paths import Path
from worldsmith.config.tree.plain import MISSING, TAG
from worldsmith.config.write.json_schema import DRAFT, REFERENCE, Schema, value_schema, with_reference
from worldsmith.config.write.values import TOML, toml_pair, write

_WIDTH = 118
_JOB = "job"
OMITTED = {"const": MISSING}
SECTIONS: Schema = {
    "type": "array",
    "items": {"type": "object", "properties": {TAG: {"type": "string", "minLength": 1}}, "required": [TAG]},
}
"""Schema of a list of sections. Each section names its class; its fields are checked only when the file is loaded."""
TASK, EXPERIMENT = ("job", "task"), ("job", "experiment")


def toml_schema(recipes: Mapping[str, Config]) -> Schema:
    """Returns the JSON Schema of recipe TOML files.

    For files that name one of the given recipes, the schema restricts the keys and types to those of the recipe.

    Args:
        recipes: Unresolved config by name of the recipe.
    """
    root = _table()
    for entry in toml_fields():
        _set_schema(root, entry.path, _described(entry))
    root["properties"]["job"]["required"] = ["experiment"]
    groups: list[tuple[list[str], Schema]] = []
    for name, tree in recipes.items():
        narrow = _recipe_schema(tree)
        known = next((names for names, schema in groups if schema == narrow), None)
        if known is not None:
            known.append(name)
        else:
            groups.append(([name], narrow))
    return {
        "$schema": DRAFT,
        "title": "Recipe TOML",
        "description": "A file that names a registered recipe and changes some of its values.",
        **root,
        "required": ["job"],
        "allOf": [_for_recipes(names, narrow) for names, narrow in groups],
        "$defs": {"reference": REFERENCE},
    }


def new_recipe_toml(name: str) -> str:
    """Returns the text of a new recipe TOML that shows every key, as a comment, with its value in the recipe.

    The file results in the config of the recipe, whether its keys are commented or not.

    Args:
        name: Name of the recipe.

    Raises:
        ConfigError: If the recipe does not exist.
    """
    tree, doc = get_recipe(name), find_recipe(name).doc
    task = recipe_task(tree) or TASKS[0]
    lines = [
        *_prose(f"A run of the recipe {name}: {doc}" if doc else f"A run of the recipe {name}."),
        "#",
        "# Without changes, this file equals the recipe. To change a value, remove the # before its key. A key that is",
        '# omitted, or is "???", keeps the value of the recipe. Text may refer to another value, ${trainer.max_iter},',
        "# or to an environment variable, ${oc.env:NAME} or ${oc.env:NAME,default}.",
        "#",
        "#   worldsmith config check FILE     worldsmith config show --changed FILE     worldsmith train FILE --dryrun",
        "",
        f"[{_JOB}]",
        toml_pair("task", task),
        toml_pair("experiment", name),
    ]
    section: tuple[str, ...] = (_JOB,)
    for entry, target in keys_in_config(tree):
        if entry.path[:-1] != section:
            section = entry.path[:-1]
            lines += ["", f"[{'.'.join(section)}]"]
        lines += ["", *_prose(_key_comment(entry, tree, target)), f"#{entry.path[-1]} = {_toml_value(tree, target)}"]
    lines += [
        "",
        "# [custom] holds the project's own data. It is stored with the run and not interpreted.",
        f"#[{OPAQUE}]",
        *(f"#{toml_pair(key, value)}" for key, value in getattr(tree, OPAQUE, {}).items()),
    ]
    return "\n".join(lines) + "\n"


def _described(entry: TomlField) -> Schema:
    has_default = entry.default is not None and entry.default != MISSING and entry.path != EXPERIMENT
    return {"description": entry.doc, **({"default": entry.default} if has_default else {}), **_key_schema(entry)}


def _key_schema(entry: TomlField) -> Schema:
    if entry.path == EXPERIMENT:
        refused: Schema = {"anyOf": [OMITTED, {"pattern": r"\$\{"}]}
        return {"type": "string", "minLength": 1, "not": refused}
    if entry.path == TASK:
        return {"enum": [*TASKS, MISSING]}
    if entry.path == (OPAQUE,):
        return {"anyOf": [{"type": "object"}, OMITTED]}
    return _optional(_without_null(entry.type))


def _optional(schema: Schema) -> Schema:
    """Returns a schema that accepts the values of `schema`, a reference, and "???", which stands for an omitted key."""
    if schema == {} or schema == {"type": "string"}:
        return schema
    return {"anyOf": [*with_reference(schema)["anyOf"], OMITTED]}


def _without_null(hint: Any) -> Schema:
    """Returns the JSON Schema of a field type without null, which TOML does not have."""
    members = [member for member in union_members(hint) if member is not type(None)]
    schemas = [SECTIONS if holds_sections(member) else value_schema(member) for member in members]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _recipe_schema(tree: Config) -> Schema:
    """Returns the schema of the keys that are more restricted in files of a recipe than in the general schema.

    Args:
        tree: Unresolved config of the recipe.
    """
    task = recipe_task(tree) or TASKS[0]
    found: Schema = {"properties": {}}
    meant = [task, MISSING] if task == TASKS[0] else [task]
    _set_schema(found, TASK, {"enum": meant})
    if task != TASKS[0]:
        found["properties"]["job"]["required"] = ["task"]
    for entry in toml_fields():
        target = remap(entry.path, task)
        if target is None or entry.path in (TASK, EXPERIMENT, (OPAQUE,)):
            continue
        narrow = dict(OMITTED) if is_missing(tree, target) else _optional(_without_null(field_type_hint(tree, target)))
        if narrow != _key_schema(entry):
            _set_schema(found, entry.path, narrow)
    return found


def keys_in_config(tree: Config) -> Iterator[tuple[TomlField, Path]]:
    """Yields (TOML key, config path) for the keys that exist in the config of a recipe, except task and recipe name."""
    task = recipe_task(tree) or TASKS[0]
    for entry in toml_fields():
        target = remap(entry.path, task)
        if target is not None and entry.path not in (TASK, EXPERIMENT, (OPAQUE,)) and not is_missing(tree, target):
            yield entry, target


def field_type_hint(tree: Config, path: Path) -> Any:
    """Returns the annotated type of the field at `path` of a config; Any if the path is not a field."""
    parent = find(tree, path[:-1])
    return annotated_hints(type(parent))[str(path[-1])] if isinstance(parent, Config) else Any


def _for_recipes(names: list[str], narrow: Schema) -> Schema:
    named = {"properties": {"job": {"properties": {"experiment": {"enum": names}}, "required": ["experiment"]}}}
    return {"if": {**named, "required": ["job"]}, "then": narrow}


def _table() -> Schema:
    return {"type": "object", "properties": {}, "additionalProperties": False}


def _set_schema(root: Schema, path: tuple[str, ...], schema: Schema) -> None:
    """Sets the schema of a key in the schema `root` in place; missing schemas of its sections are created."""
    node = root
    for name in path[:-1]:
        node = node["properties"].setdefault(name, _table() if "additionalProperties" in root else {"properties": {}})
    node["properties"][path[-1]] = schema


def _key_comment(entry: TomlField, tree: Config, target: tuple[Any, ...]) -> str:
    """Returns the comment above a key in a recipe TOML: description, type and default.

    Args:
        entry: The key.
        tree: Config of the recipe.
        target: Config path that the key sets; the description is that of the field there, if it has one.
    """
    hint = field_type_hint(tree, target)
    doc = " ".join(field_docs(type(find(tree, target[:-1]))).get(str(target[-1]), entry.doc).split())
    default = "" if entry.default in (None, MISSING, "") else f" Default: {write(entry.default, TOML)}."
    return f"{doc} ({describe_hint(hint, null=False)}){default}"


def _prose(text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )


def _toml_value(tree: Config, path: tuple[Any, ...]) -> str:
    value = find(tree, path)
    try:
        return write(value, TOML)
    except ValueError:  # null: TOML has no form for it, and an omitted key keeps it
        return f'"{MISSING}"'
