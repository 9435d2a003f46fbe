"""JSON Schema (draft 2020-12) of the config, from the types, ranges, docstrings and defaults of its fields.

It cannot express that a reference has a target, the cross-field checks of sections, and that ``1.0`` is not an integer
(in JSON it is). A class is named by the one tag that a dump writes.
"""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from worldsmith.config.declare.class_tags import tag_of, trusted_packages
from worldsmith.config.declare.configurable import OPAQUE, Config, Configurable, owner_of
from worldsmith.config.declare.field_docs import field_docs
from worldsmith.config.declare.ranges import Length, Mark, Range, annotated_hints
from worldsmith.config.declare.search import marks_schema
from worldsmith.config.declare.value_types import is_config_class, union_members
from worldsmith.config.tree.plain import TAG, class_defaults, required_fields
from worldsmith.config.tree.read_config import untagged_class

DRAFT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE = {
    "type": "string",
    "pattern": r"\$\{",
    "description": "A reference: ${trainer.max_iter}, ${oc.env:NAME}, ${oc.env:NAME,default}, ${now:%Y}, ${asset:NAME}",
}
REF = {"$ref": "#/$defs/reference"}
_NAMES: Mapping[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}

Schema = dict[str, Any]


def tree_schema(trees: Mapping[str, Config]) -> Schema:
    """Returns the JSON Schema of the configs of several recipes.

    Args:
        trees: Unresolved config by name of the recipe. If there is only one recipe, the values of its config become the
            defaults in the schema.
    """
    writer = TreeSchema()
    roots = list(dict.fromkeys(type(tree) for tree in trees.values()))
    if len(trees) == 1:
        root = {**writer.section(roots[0], next(iter(trees.values()))), "required": [TAG, *required_fields(roots[0])]}
    else:
        entries = [{**writer.ref(cls), "required": [TAG]} for cls in roots]
        root = entries[0] if len(entries) == 1 else {"anyOf": entries}
    name = f"the recipe {next(iter(trees))}" if len(trees) == 1 else "a run"
    return {
        "$schema": DRAFT,
        **root,
        "title": f"The config of {name}",
        "$defs": {"reference": REFERENCE, **writer.defs},
    }


def value_schema(hint: Any) -> Schema:
    """Returns the JSON Schema of a field type that contains no sections.

    The schema rejects references such as ``${trainer.max_iter}``; `with_reference` adds them.
    """
    return _Types().value(hint)


def with_reference(schema: Schema) -> Schema:
    """Returns a schema that also accepts a reference; a schema of strings already accepts it and is unchanged."""
    if schema == {} or schema == {"type": "string"}:
        return schema
    return {"anyOf": [*(schema["anyOf"] if list(schema) == ["anyOf"] else [schema]), REF]}


class _Types:
    """Converts types of config fields to JSON Schemas. Raises TypeError for a type that contains sections."""

    def value(self, hint: Any, instance: Any = None) -> Schema:
        origin, arguments = get_origin(hint), get_args(hint)
        if hint is Any:
            return {}
        if hint in _NAMES:
            return {"type": _NAMES[hint]}
        if origin is Annotated:
            schema = self.value(arguments[0], instance)
            for limits in arguments[1:]:
                schema = schema if isinstance(limits, Mark) else _limited(schema, limits)
            return schema
        if origin is Literal:
            return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return _any_of([self.value(member, instance) for member in arguments])
        if origin is list:
            return {"type": "array", "items": self.field(arguments[0])}
        if origin is dict:
            known = instance if isinstance(instance, dict) and has_sections(arguments[1]) else {}
            listed = {key: self.field(arguments[1], item) for key, item in known.items()}
            rest = {"additionalProperties": self.field(arguments[1])}
            return {"type": "object", **({"properties": listed} if listed else {}), **rest}
        return self.sections(hint, instance)

    def field(self, hint: Any, instance: Any = None) -> Schema:
        """Returns the JSON Schema of a field that accepts a value of type `hint` or a reference.

        Args:
            hint: Type of the field.
            instance: Dict whose keys are listed in the schema, if the field is a table of sections; else ignored.
        """
        return with_reference(self.value(hint, instance))

    def sections(self, hint: Any, instance: Any) -> Schema:
        raise TypeError(f"{hint} is a section, not a plain value")


class TreeSchema(_Types):
    """Converts field types to JSON Schemas; the schema of each section class is added to `defs` once."""

    def __init__(self) -> None:
        self.defs: dict[str, Schema] = {}

    def sections(self, hint: Any, instance: Any) -> Schema:
        """Returns the JSON Schema of a field with a section: one alternative for each class that the section can have.

        Args:
            hint: Type of the field.
            instance: Section whose values become the defaults; None: the defaults of the classes.
        """
        entries: list[Schema] = []
        for cls in loadable_classes(hint):
            entry = self.section(cls, instance) if type(instance) is cls else self.ref(cls)
            required = [*(entry.get("required", [])), *([] if cls is untagged_class(union_members(hint)) else [TAG])]
            entries.append({**entry, **({"required": list(dict.fromkeys(required))} if required else {})})
        return _any_of(entries)

    def ref(self, cls: type[Config]) -> Schema:
        name = tag_of(cls)
        if name not in self.defs:
            self.defs[name] = {}  # a section may contain sections of its own class
            self.defs[name] = self.section(cls)
        return {"$ref": f"#/$defs/{name}"}

    def section(self, cls: type[Config], instance: Config | None = None) -> Schema:
        """Returns the JSON Schema of a section class; defaults are the values of `instance` or those of the class."""
        docs, defaults = field_docs(cls), class_defaults(cls)
        properties: dict[str, Schema] = {TAG: {"const": tag_of(cls)}}
        for name, hint in annotated_hints(cls).items():
            value = defaults.get(name) if instance is None else getattr(instance, name)
            if name == OPAQUE:
                schema: Schema = {"type": "object"}
            else:
                schema = self.field(hint, value if instance is not None else None)
            has_default = (instance is not None or name in defaults) and not has_sections(hint)
            default = {"default": copy.deepcopy(value)} if has_default else {}
            doc = {"description": " ".join(docs[name].split())} if name in docs else {}
            properties[name] = {**doc, **default, **schema, **marks_schema(hint)}
        required = required_fields(cls)
        return {
            **describe_class(cls),
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }


def has_sections(hint: Any) -> bool:
    """Returns whether a type hint contains a Config class, also inside of lists, dicts and unions."""
    return is_config_class(hint) or any(has_sections(argument) for argument in get_args(hint))


def loadable_classes(hint: Any) -> list[type[Config]]:
    """Returns the classes that a config file can name for a section of type `hint`.

    These are in trusted packages, not abstract, and not defined inside functions.
    """
    packages = trusted_packages()
    found: list[type[Config]] = []

    def visit(cls: type[Config]) -> None:
        named = owner_of(cls) or cls
        loadable = cls.__module__.partition(".")[0] in packages and "<locals>" not in named.__qualname__
        loadable = loadable and not inspect.isabstract(named)
        if loadable and cls is not Configurable.Config and cls not in found:
            found.append(cls)
        for child in sorted(type.__subclasses__(cls), key=lambda child: (child.__module__, child.__qualname__)):
            visit(child)

    for member in union_members(hint):
        if is_config_class(member):
            visit(member)
    return found


def describe_class(cls: type[Config]) -> Schema:
    """Returns `title` and `description` of a Config class for JSON Schema, from the docstring of its component."""
    named = owner_of(cls) or cls
    doc = inspect.getdoc(named) if "__doc__" in vars(named) else None
    generated = doc is None or doc.startswith(f"{named.__name__}(")
    return {"title": named.__qualname__, **({} if generated else {"description": str(doc).partition("\n\n")[0]})}


def _limited(schema: Schema, limits: Range | Length) -> Schema:
    if isinstance(limits, Length):
        return {**schema, **limits.json_schema(schema["type"])}
    limited = {**schema, **limits.json_schema()}
    return limited if limits.also is None else {"anyOf": [{"const": limits.also}, limited]}


def _any_of(schemas: list[Schema]) -> Schema:
    """Returns a schema that accepts each value that at least one of the given schemas accepts.

    Schemas that only have a `type` are combined into one schema with a list of types.
    """
    flat = [part for schema in schemas for part in (schema["anyOf"] if list(schema) == ["anyOf"] else [schema])]
    if {} in flat:
        return {}
    if all(list(part) == ["type"] for part in flat) and len(flat) > 1:
        return {"type": [part["type"] for part in flat]}
    return flat[0] if len(flat) == 1 else {"anyOf": flat}
