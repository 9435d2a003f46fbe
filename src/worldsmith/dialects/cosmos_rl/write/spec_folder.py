"""Writes schemas and templates of all spec formats as the files of one folder, in JSON Schema or in TAO's style.

A schema with the key names of TAO is for tools that read those; it is not a JSON Schema. `minimum` and `maximum` are
the limits of the search space if a field has one, because the readers of these keys sample from them. JSON has no
infinity: a side without a limit has no key.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from worldsmith.config.declare.search import TIMES
from worldsmith.config.write.json_schema import Schema
from worldsmith.dialects.cosmos_rl.policy import MANIFEST, SCHEMA, TEMPLATE
from worldsmith.dialects.cosmos_rl.write.spec_schema import key_schema, spec_schema
from worldsmith.dialects.cosmos_rl.write.spec_template import spec_template
from worldsmith.dialects.translation import SpecForm

KINDS = {"object": "dict", "array": "list", "integer": "int", "number": "float", "string": "string", "boolean": "bool"}
CONDITIONS = {"power_of_two": "^ 2"}
COPIED = ("description", "default", "pattern", "examples")
ENDS = ("minimum", "maximum")
TRAIN = "train"


def spec_files(forms: Mapping[str, Callable[[], SpecForm]], style: str) -> dict[str, str | None]:
    """Returns the files of a schema folder: a schema and a template for each action, and a manifest.

    The contents depend only on the formats and the style.

    Args:
        forms: Functions that build the spec formats, by action.
        style: "json-schema" or "tao".

    Returns:
        Text of each file by relative path, with the manifest last. None stands for a file that could not be built;
        the manifest has the reason.
    """
    files: dict[str, str | None] = {}
    actions: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for action, make in forms.items():
        paths = SCHEMA.format(action), TEMPLATE.format(action)
        try:
            form = make()
            schema, texts = key_schema(form), (as_text(STYLES[style](form)), spec_template(form, paths[1]))
        except Exception as error:  # of another package's form as well: the others are still written
            failures[action] = f"{type(error).__name__}: {error}"
            files |= dict.fromkeys(paths)
            continue
        files |= dict(zip(paths, texts, strict=True))
        searched, others = searched_keys(schema)
        actions[action] = {
            "path": paths[0],
            "spec_template": paths[1],
            "schema_action": form.name,
            "core_module": form.spec.__module__,
            "popular": popular(schema),
            "automl_default_parameters": searched,
            "automl_disabled_parameters": others,
        }
    manifest = {
        "schema_version": 1,
        "model": "cosmos-rl",
        "network_arch": "cosmos-rl",
        "style": style,
        "automl_enabled": bool(actions.get(TRAIN, {}).get("automl_default_parameters")),
        "failures": failures,
        "actions": actions,
    }
    return {**files, MANIFEST: as_text(manifest)}


def as_text(schema: Any) -> str:
    """Returns a schema as indented JSON text. Raises ValueError for infinity or NaN."""
    return json.dumps(schema, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def tao_schema(form: SpecForm) -> Schema:
    """Returns the schema of a spec format with the key names of TAO."""
    schema = key_schema(form)
    searched, others = searched_keys(schema)
    return {
        "title": schema["title"],
        "type": "object",
        "description": schema.get("description", ""),
        "default": schema["default"],
        "properties": {key: _property(key, field) for key, field in _active_keys(schema)},
        "popular": popular(schema),
        "required": schema.get("required", []),
        "automl_default_parameters": searched,
        "automl_disabled_parameters": others,
        "x_tao_schema": {
            "action": form.name,
            "core_module": form.spec.__module__,
            "model": "cosmos-rl",
            "network_arch": "cosmos-rl",
            "schema_action": form.name,
            "schema_version": 1,
            "source": f"{form.spec.__module__}.{form.spec.__qualname__}",
        },
    }


def popular(schema: Schema) -> dict[str, Any]:
    """Returns the keys that a schema marks as popular (`x-popular`), as nested tables with their defaults."""
    found: dict[str, Any] = {}
    for key, field in _active_keys(schema):
        if "properties" in field:
            if inner := popular(field):
                found[key] = inner
        elif field.get("x-popular"):
            found[key] = field.get("default")
    return found


def searched_keys(schema: Schema) -> tuple[list[str], list[str]]:
    """Returns two lists of dotted keys: those that a hyperparameter search varies by default, and all other keys.

    Keys of sections are in the second list; deprecated keys are in neither.
    """
    keys: tuple[list[str], list[str]] = ([], [])
    for key, field in _all_active_keys(schema):
        keys[not field.get("x-automl", {}).get("enabled")].append(key)
    return keys


def _active_keys(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yields (key, schema) for each key of a section that is not deprecated; `null` alternatives are removed."""
    for key, field in schema["properties"].items():
        if not field.get("deprecated"):
            options = [option for option in field.get("anyOf", []) if option != {"type": "null"}]
            several = {"anyOf": options} if len(options) > 1 else options[0] if options else {}
            yield key, {**{name: value for name, value in field.items() if name != "anyOf"}, **several}


def _all_active_keys(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yields (dotted key, schema) for each key of a section and its subsections that is not deprecated.

    `path`: prefix of the dotted keys, empty or ending in a dot.
    """
    for key, field in _active_keys(schema):
        yield f"{path}{key}", field
        if "properties" in field:
            yield from _all_active_keys(field, f"{path}{key}.")


def _property(key: str, field: Schema) -> Schema:
    """Converts the JSON Schema `field` of one key to TAO's format."""
    automl, copied = field.get("x-automl", {}), {name: field[name] for name in COPIED if name in field}
    if ranges := _ranges(automl.get("cases", [])):
        copied["description"] = f"{copied['description']} {ranges}"
    if "properties" in field:
        inner = {name: _property(name, below) for name, below in _active_keys(field)}
        return {"title": key, "type": "collection", **copied, "properties": inner, "automl_enabled": "FALSE"}
    search = {} if TIMES in automl.get("cond", "") else automl  # the sampled number is a factor there, not the value
    choices = search.get("choices", field.get("enum", [field["const"]] if "const" in field else None))
    kind = "ordered_int" if search.get("choices") and field.get("type") == "integer" else _kind(field)
    limits = {name: search.get(name, field.get(name, field.get(f"exclusive{name.title()}"))) for name in ENDS}
    condition = CONDITIONS.get(search.get("scale", "")) or (f"> {limits['minimum']}" if _is_above(field) else None)
    own = {
        **{name: limit for name, limit in limits.items() if limit != sys.float_info.max},
        "enum": choices,
        "option_weights": search.get("weights"),
        "math_cond": condition if search is automl else "> depends_on",
        "parent_param": "TRUE" if field.get("x-parent") else None,
        "depends_on": ", ".join(field.get("x-depends-on", [])) or None,
        "automl_enabled": "TRUE" if automl.get("enabled") else "FALSE",
        "popular": "TRUE" if field.get("x-popular") else None,
        "anyOf": [{"type": _kind(option)} for option in field.get("anyOf", []) if "type" in option] or None,
    }
    return {"title": key, "type": kind, **copied, **{name: value for name, value in own.items() if value is not None}}


def _ranges(cases: list[Schema]) -> str:
    """Describes the conditional search ranges of a key in a sentence, because TAO's format stores only one range.

    `cases`: search ranges of the JSON Schema (`x-automl`), each with an optional condition.
    """
    texts = []
    for case in cases:
        ends = "one of {choices}" if "choices" in case else "{minimum} to {maximum}"
        condition = f"if {case['cond']}" if "cond" in case else "otherwise"
        texts.append(f"{ends.format(**case)} ({case['scale']}) {condition}")
    return f"A search samples from {'; '.join(texts)}." if texts else ""


def _is_above(field: Schema) -> bool:
    return "exclusiveMinimum" in field and "x-automl" not in field


def _kind(field: Schema) -> str:
    if "enum" in field or "const" in field:
        return "categorical"
    if field.get("type") == "array" and "enum" in field.get("items", {}):
        return "subset_list"
    named = field.get("type") or next(
        (option["type"] for option in field.get("anyOf", []) if "type" in option), "string"
    )
    return KINDS.get(named if isinstance(named, str) else named[0], "string")


STYLES: Mapping[str, Callable[[SpecForm], Schema]] = {"json-schema": spec_schema, "tao": tao_schema}
