"""JSON Schema (draft 2020-12) of a spec format: one nested table without type tags.

In addition to a config's schema it has ``default`` with all defaults, ``x-parent`` at keys that others depend on, and
known keys without effect as ``deprecated``. Aliases are references to the keys. The schema cannot express that a key
and its alias exclude each other.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, get_args

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.field_docs import field_docs
from worldsmith.config.declare.ranges import annotated_hints
from worldsmith.config.declare.search import Example, marks_schema, search_marks
from worldsmith.config.declare.value_types import nested_config_classes
from worldsmith.config.tree.paths import Path, parse_path
from worldsmith.config.tree.plain import class_defaults, required_fields, to_plain
from worldsmith.config.write.json_schema import DRAFT, Schema, _Types, describe_class
from worldsmith.dialects.cosmos_rl.names import key_of, spec_key
from worldsmith.dialects.translation import SpecForm

NOTES = ("description", "default", "examples")
"""JSON Schema keywords that describe a field without restricting its values."""


def spec_schema(form: SpecForm) -> Schema:
    """Returns the JSON Schema of a spec format, including aliases and the placeholder values of templates."""
    root = key_schema(form)
    for key, value in form.left_open.items():
        _leave_open(_place(root, key), key.rpartition(".")[2], value)
    for alias, key in form.aliases.items():
        described = {"description": f"Another name of {key}.", "$ref": _pointer(root, key)}
        _place(root, alias, "Other names of keys.")[alias.rpartition(".")[2]] = described
    if form.wrapper:
        inner = {key: {"description": f"As {key}.", "$ref": f"#/properties/{key}"} for key in root["properties"]}
        text = "All keys of the spec may be below this key."
        table = {"description": text, "type": "object", "properties": inner, "additionalProperties": False}
        root["properties"][form.wrapper] = table
    choices, default = _require_one_name(root, form), root.pop("default")
    return {**root, **({"allOf": choices} if choices else {}), "default": default}


def key_schema(form: SpecForm) -> Schema:
    """Returns the JSON Schema of a spec format for the keys themselves, as the base of `spec_schema`.

    It does not accept aliases of keys, nor placeholder values: values in the spec templates, such as "" for a model
    path, that the user must replace (`SpecForm.left_open`).

    Args:
        form: Spec format.
    """
    root = _SpecTypes(form).section(form.spec, ())
    for rule in form.rules:
        for key in rule.keys if rule.outside else ():
            _place(root, key)[key.rpartition(".")[2]] = {"deprecated": True, "description": rule.note}
    for path in sorted({path for schema in _leaves(root) for path in schema.get("x-depends-on", [])}):
        _place(root, path)[path.rpartition(".")[2]]["x-parent"] = True
    return {"$schema": DRAFT, "title": f"The spec of {form.name}", **root, "default": defaults(form.spec)}


def defaults(cls: type[Config], *, examples: bool = False) -> dict[str, Any]:
    """Returns the defaults of a spec class as nested data by key, without keys that have no default or None.

    Args:
        cls: The spec class.
        examples: Add the example of each required key, so that the result is a complete spec.

    Raises:
        TypeError: With `examples`, for a key that has neither a default nor an example.
    """
    known, found = class_defaults(cls), {}
    for name, hint in annotated_hints(cls).items():
        key, sections, given = key_of(name), nested_config_classes(strip_annotated(hint)), known.get(name)
        marks = [mark for mark in search_marks(hint) if isinstance(mark, Example)] if examples else []
        shown = [mark.value for mark in marks if mark.required or name not in known]
        if sections and (name not in known or given is not None or shown):
            found[key] = {**defaults(sections[0], examples=examples), **(shown[0] if shown else {})}
        elif shown or given is not None:
            found[key] = copy.deepcopy(shown[0] if shown else to_plain(given))
        elif examples and name not in known:
            raise TypeError(f"{cls.__qualname__}.{name} has no default and no Example for the template")
    return found


class _SpecTypes(_Types):
    """Converts type hints of a spec format to JSON Schemas; sections are inlined instead of referenced."""

    def __init__(self, form: SpecForm) -> None:
        self.form = form
        self.path: Path = ()

    def field(self, hint: Any, instance: Any = None) -> Schema:
        return self.value(hint, instance)

    def sections(self, hint: Any, instance: Any) -> Schema:
        return self.section(hint, self.path)

    def section(self, cls: type[Config], path: Path) -> Schema:
        """Returns the JSON Schema of a section with the config class `cls` at the field path `path`."""
        docs, known, properties = field_docs(cls), class_defaults(cls), {}
        for name, hint in annotated_hints(cls).items():
            self.path = (*path, name)
            described = {"description": " ".join(docs[name].split())} if name in docs else {}
            leaf = not nested_config_classes(strip_annotated(hint))
            default = {"default": copy.deepcopy(to_plain(known[name]))} if leaf and known.get(name) is not None else {}
            marks = marks_schema(hint)
            if needed := marks.get("x-depends-on"):
                marks["x-depends-on"] = [spec_key(_from_root(other, path)) for other in needed]
            properties[key_of(name)] = {**self.value(hint), **described, **default, **marks}
        required = [key_of(name) for name in required_fields(cls)]
        return {
            **{key: text for key, text in describe_class(cls).items() if key == "description"},
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": spec_key(path) in self.form.free if path else False,
        }


def strip_annotated(hint: Any) -> Any:
    """Returns the type inside an `Annotated` type; any other type is returned unchanged."""
    return get_args(hint)[0] if hasattr(hint, "__metadata__") else hint


def _from_root(path: str, section: Path) -> Path:
    return parse_path(path) if "." in path else (*section, path)


def _leave_open(properties: dict[str, Schema], key: str, value: Any) -> None:
    """Changes the schema of `key` in `properties` in place so that it also allows the placeholder `value`.

    A schema that accepts any string is not changed for a string.
    """
    field = properties[key]
    if field.get("type") == "string" and isinstance(value, str):
        return
    kept = {name: entry_value for name, entry_value in field.items() if name in NOTES or name.startswith("x-")}
    kind = {name: entry_value for name, entry_value in field.items() if name not in kept}
    options = kind["anyOf"] if list(kind) == ["anyOf"] else [kind]
    properties[key] = {"anyOf": [*options, {"const": value, "description": "Accepts any value for the key."}], **kept}


def _pointer(root: Schema, key: str) -> str:
    """Returns the JSON pointer of a dotted key in the schema `root`."""
    node, pointer = root, "#"
    for part in key.split("."):
        for number, option in enumerate(node.get("anyOf", [])):
            if "properties" in option:
                node, pointer = option, f"{pointer}/anyOf/{number}"
        node, pointer = node["properties"][part], f"{pointer}/properties/{part}"
    return pointer


def _require_one_name(root: Schema, form: SpecForm) -> list[Schema]:
    """Makes required keys that have aliases optional, in place.

    Returns:
        Schemas that each require one of the spellings of such a key.
    """
    choices = []
    for path in list(_required(root)):
        key = ".".join(path)
        ways = [path, *(tuple(alias.split(".")) for alias, named in form.aliases.items() if named == key)]
        ways += [(other,) for other, tables in form.instead.items() if path[-1] in tables.get(path[0], {})]
        ways += [(form.wrapper, *way) for way in ways] if form.wrapper else []
        if len(ways) == 1:
            continue
        choices.append({"anyOf": [_needs(way) for way in ways]})
        for length in range(len(path), 0, -1):
            node = root
            for part in path[: length - 1]:
                node = node["properties"][part]
            if length == len(path) or "required" not in node["properties"][path[length - 1]]:
                node["required"] = [name for name in node.get("required", []) if name != path[length - 1]]
                if not node["required"]:
                    del node["required"]
    return choices


def _required(schema: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the key paths of all required values of a schema; each path begins with `path`."""
    for name in schema.get("required", []):
        field = schema["properties"][name]
        if "required" in field:
            yield from _required(field, (*path, name))
        else:
            yield (*path, name)


def _needs(path: tuple[str, ...]) -> Schema:
    """Returns a JSON Schema that requires a value at a key path."""
    name, *rest = path
    return {"required": [name], **({"properties": {name: _needs(tuple(rest))}} if rest else {})}


def _place(root: Schema, key: str, description: str = "") -> dict[str, Any]:
    """Returns the `properties` of the table that contains a dotted key; adds missing tables to the schema `root`.

    `description`: description of an added table.
    """
    node = root
    for part in key.split(".")[:-1]:
        described = {"description": description} if description else {}
        table = {**described, "type": "object", "properties": {}, "additionalProperties": False}
        node = node["properties"].setdefault(part, table)
        node = next((option for option in node.get("anyOf", []) if "properties" in option), node)
    return node["properties"]


def _leaves(schema: Schema) -> Iterator[Schema]:
    for inner in schema.get("properties", {}).values():
        yield inner
        for option in [inner, *inner.get("anyOf", [])]:
            yield from _leaves(option)
