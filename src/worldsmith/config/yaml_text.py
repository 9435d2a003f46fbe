"""YAML text as plain data with the place of every key, and plain data as YAML text.

Reads what people write: ``1e-5`` is a number, only true/false are truth values, dates are text. Tags are refused, so
no code is named; a key that is given twice is a mistake.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from worldsmith.config.errors import ConfigError, Place, Problem
from worldsmith.config.paths import Path, format_path

MAX_NODES = 100_000
_PLAIN_TAGS = {"map", "seq", "str", "int", "float", "bool", "null"}
_PATTERNS = {
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "tag:yaml.org,2002:null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "tag:yaml.org,2002:int": (r"[-+]?[0-9]+", "-+0123456789"),
    "tag:yaml.org,2002:float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        """Lists of plain values on one line, all else in blocks."""
        plain = not any(isinstance(item, (list, dict)) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain)

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


for _tag, (_pattern, _first) in _PATTERNS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))


@dataclass(frozen=True, slots=True)
class Document:
    """What a YAML text says, and where."""

    data: Any
    places: dict[Path, Place]


def dump_yaml(data: Any) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


def read_yaml(text: str, file: str) -> Document:
    """Reads one document. Raises ConfigError for bad syntax, repeated keys, tags and texts that expand without end."""
    reader = _Reader(text, file)
    try:
        node = yaml.compose(text, Loader=_Loader)
        data = reader.plain(node, ()) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = reader.place(mark.line, mark.column) if mark else Place(file)
        raise ConfigError([Problem("", f"not valid YAML: {error.problem or error.context}", place=place)]) from None
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError([Problem("", f"not valid YAML: {error}", place=Place(file))]) from None
    except RecursionError:
        raise ConfigError([Problem("", "nested too deeply", place=Place(file))]) from None
    if reader.problems:
        raise ConfigError(reader.problems)
    return Document(data, reader.places)


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self.lines = text.splitlines()
        self.file = file
        self.places: dict[Path, Place] = {}
        self.problems: list[Problem] = []
        self.count = 0
        self.scalars = _Loader("")

    def place(self, line: int, column: int, length: int = 1) -> Place:
        source = self.lines[line] if line < len(self.lines) else None
        return Place(self.file, line + 1, column + 1, length, source)

    def plain(self, node: yaml.Node, path: Path) -> Any:
        self.count += 1
        mark = node.start_mark
        if self.count > MAX_NODES:
            place = self.place(mark.line, mark.column)
            raise ConfigError([Problem("", f"the text expands to more than {MAX_NODES} values", place=place)])
        if node.tag.removeprefix("tag:yaml.org,2002:") not in _PLAIN_TAGS:
            self.problem(path, f"the tag {node.tag} is not allowed", mark)
            return None
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(child, self.remember((*path, i), child)) for i, child in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        return self.scalars.construct_object(node, deep=True)

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.problem(path, "a key must be plain text", key_node.start_mark)
                continue
            key = key_node.value
            if key in found:
                self.problem((*path, key), f"the key '{key}' is given twice", key_node.start_mark)
            found[key] = self.plain(value_node, self.remember((*path, key), key_node))
        return found

    def remember(self, path: Path, node: yaml.Node) -> Path:
        mark = node.start_mark
        length = max(1, node.end_mark.column - mark.column) if node.end_mark.line == mark.line else 1
        self.places.setdefault(path, self.place(mark.line, mark.column, length))
        return path

    def problem(self, path: Path, message: str, mark: Any) -> None:
        self.problems.append(Problem(format_path(path), message, place=self.place(mark.line, mark.column)))
