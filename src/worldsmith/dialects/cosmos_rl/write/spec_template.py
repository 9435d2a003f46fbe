"""Templates of specs: every key of a format with its default or an example, as TOML, YAML or JSON."""

from __future__ import annotations

import json
import textwrap
from typing import Any

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.field_docs import field_docs
from worldsmith.config.declare.ranges import annotated_hints
from worldsmith.config.declare.search import Example, search_marks
from worldsmith.config.declare.value_types import describe_hint, nested_config_classes
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import class_defaults
from worldsmith.config.write.values import SHOWN, TOML, toml_pair, write
from worldsmith.config.yaml.yaml_text import dump_yaml
from worldsmith.dialects.cosmos_rl.names import key_of
from worldsmith.dialects.cosmos_rl.write.spec_schema import defaults, strip_annotated
from worldsmith.dialects.translation import SpecForm

WIDTH = 118
YAML_SUFFIXES = (".yaml", ".yml")
INTRODUCTION = (
    "The spec of {name}. Every key has its default, or an example if it is required; keys that are commented out are "
    "not set. "
)
WAYS = (
    "Flags override the file: worldsmith {command} --settings FILE",
    "Arguments override the file: worldsmith {command} --spec FILE {key}=VALUE",
)
"""Ways in which a command accepts its settings and specs."""


def spec_template(form: SpecForm, file: str) -> str:
    """Returns the text of a template file of a spec: every key with its default or an example.

    TOML and YAML templates explain each key in a comment.

    Args:
        form: Format of the spec.
        file: Name of the template file; its suffix (.toml, .yaml, .yml or .json) selects the language.

    Raises:
        UserError: For another suffix.
    """
    values, name = defaults(form.spec, examples=True), file.lower()
    if name.endswith(".json"):
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    if not name.endswith((".toml", *YAML_SUFFIXES)):
        raise UserError(f"{file}: the name of a spec must end in .toml, .yaml or .json")
    command = "infer" if form.name == "inference" else form.name
    first = next(iter(form.aliases), "") or _first_key(values)
    way = WAYS[bool(form.rules)].format(command=command, key=first)
    lines = _prose(f"{INTRODUCTION.format(name=form.name)}{way}", "")
    toml = name.endswith(".toml")
    body = _toml(form.spec, values, ()) if toml else _yaml(form.spec, values, "")
    return "\n".join([*lines, *([] if toml else [""]), *body]) + "\n"


def _yaml(cls: type[Config], values: dict[str, Any] | None, indent: str) -> list[str]:
    """Returns the YAML lines of a section, indented by `indent`.

    `values`: content of the section by key; None: all lines are commented out.
    """
    lines: list[str] = []
    off = "" if values is not None else "#"
    for key, doc, section in _fields(cls):
        value = (values or {}).get(key)
        lines += _prose(doc, indent)
        if section:
            empty = " {}" if value == {} else ""
            lines += [f"{indent}{off or '#' * (value is None)}{key}:{empty}", *_yaml(section, value, f"{indent}  ")]
        elif value is None:
            lines.append(f"{indent}#{key}:")
        else:
            lines += [f"{indent}{line}" for line in dump_yaml({key: value}).splitlines()]
    return lines


def _toml(cls: type[Config], values: dict[str, Any] | None, path: tuple[str, ...]) -> list[str]:
    """Returns the TOML lines of a section at the key path `path`: single values first, as TOML requires.

    `values`: content of the section by key; None: all values are commented out.
    """
    lines: list[str] = []
    fields = _fields(cls)
    for key, doc, section in fields:
        if section is None:
            value = (values or {}).get(key)
            lines += _prose(doc, "") if path else ["", *_prose(doc, "")]
            lines.append(f"#{key} =" if value is None else toml_pair(key, value))
    for key, doc, section in fields:
        if section is not None:
            value = (values or {}).get(key)
            below = (*path, key)
            off = "#" if value is None else ""
            lines += ["", *_prose(doc, ""), f"{off}[{'.'.join(map(TOML.key, below))}]", *_toml(section, value, below)]
    return lines


def _fields(cls: type[Config]) -> list[tuple[str, str, type[Config] | None]]:
    """Returns (key, description with type, config class of the section or None) for each field of a spec class."""
    docs = field_docs(cls)
    found = []
    for name, hint in annotated_hints(cls).items():
        sections = nested_config_classes(strip_annotated(hint))
        doc = " ".join(docs.get(name, "").split())
        words = "" if sections else describe_hint(hint, null=False)
        for mark in search_marks(hint):
            if isinstance(mark, Example) and not mark.required and name in class_defaults(cls):
                words += f"; for example {write(mark.value, SHOWN)}"
        found.append((key_of(name), f"{doc} ({words})" if words else doc, sections[0] if sections else None))
    return found


def _first_key(values: dict[str, Any]) -> str:
    key, value = next(iter(values.items()))
    return f"{key}.{_first_key(value)}" if isinstance(value, dict) and value else key


def _prose(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ", break_long_words=False
    )
