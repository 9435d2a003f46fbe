"""YAML text to plain data with the source position of every key and value, and plain data to YAML text.

``1e-5`` is a number. Only true and false are booleans, so ``on``, ``off``, ``yes`` and ``no`` are text. ``010``,
``0x10``, ``1_000``, ``1:30`` and dates are text, because YAML parsers disagree about them. Tags are rejected, so no
code can be named; repeated keys and the merge key ``<<`` are mistakes.
"""

from __future__ import annotations

import copy
import datetime
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from worldsmith.config.errors import ConfigError, Place, Problem
from worldsmith.config.text_file import MAX_DEPTH, MAX_VALUES, too_deep, too_many
from worldsmith.config.toml.toml_text import Span
from worldsmith.config.tree.paths import Path, format_path

MAX_DIGITS = 400
_PREFIX = "tag:yaml.org,2002:"
_PATTERNS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
}
_TRUTH_WORDS = r"[yYnN]|[yY]es|YES|[nN]o|NO|[oO]n|ON|[oO]ff|OFF"
_ODD_NUMBERS = r"[-+]?(?:0[0-9_]+|0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*(?:\.[0-9_]*)?)"
_ODD_TIMES = r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*"
_LOOKALIKES = rf"{_TRUTH_WORDS}|{_ODD_NUMBERS}|{_ODD_TIMES}|<<|="
"""Pattern of strings that other YAML parsers would read as another type; they are written in quotes."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}

    def __init__(self, text: str, place: Callable[[int, int], Place]) -> None:
        super().__init__(text)
        self.place = place
        self.tagged: dict[int, str] = {}
        self.count = self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Parses a YAML node and records its explicit tag; raises ConfigError for too many or too nested values."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        self.count += index is not None  # no key
        self.depth += 1
        if self.count > MAX_VALUES or self.depth > MAX_DEPTH:
            mark = event.start_mark
            raise ConfigError([(too_deep if self.depth > MAX_DEPTH else too_many)(self.place(mark.line, mark.column))])
        node = super().compose_node(parent, index)
        self.depth -= 1
        if tag is not None and node is not None:
            self.tagged[id(node)] = tag
        return node


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Writes a string; line ends other than LF, which YAML would read as spaces, are escaped."""
        style = '"' if any(letter in data for letter in "\r\x85\u2028\u2029\ufeff") else None
        return self.represent_scalar(_PREFIX + "str", data, style=style)

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        """Writes lists of plain values on one line, all other lists in blocks."""
        plain = not any(isinstance(item, (list, dict)) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain)

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Dumper.add_representer(str, _Dumper.represent_str)
_Dumper.add_representer(datetime.time, lambda dumper, time: dumper.represent_str(time.isoformat()))  # YAML has none
for _name, (_pattern, _first) in _PATTERNS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_PREFIX + _name, re.compile(rf"^(?:{_pattern})$"), list(_first))
_Dumper.add_implicit_resolver(_PREFIX + "timestamp", re.compile(rf"^(?:{_LOOKALIKES})$"), list("yYnNoO-+0123456789<="))


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed config file: plain data, and the source positions of keys, list items and values by path."""

    data: Any
    spans: dict[Path, Span]

    @property
    def places(self) -> dict[Path, Place]:
        """Source position of each key, by path."""
        return {path: span.key for path, span in self.spans.items()}


def dump_yaml(data: Any) -> str:
    """Formats plain data as YAML that other YAML parsers read as the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


def read_yaml(text: str, file: str) -> Document:
    """Parses YAML text with one document. The result is a copy that the caller may change.

    Args:
        text: YAML.
        file: File name for messages.

    Raises:
        ConfigError: For bad syntax, repeated keys, tags, and aliases that expand to too many values.
    """
    document = _read_once(text, file)
    return Document(copy.deepcopy(document.data), dict(document.spans))


@lru_cache(maxsize=8)
def _read_once(text: str, file: str) -> Document:
    """Parses YAML text once; the result is cached, since detecting the file type parses it too."""
    reader = _Reader(text, file)
    try:
        data = reader.read()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = reader.place(mark.line, mark.column) if mark else Place(file)
        raise ConfigError([Problem("", f"not valid YAML: {error.problem or error.context}", place=place)]) from None
    except yaml.reader.ReaderError as error:
        before = reader.split(text[: error.position])
        place = reader.place(len(before) - 1, len(before[-1]))
        message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise ConfigError([Problem("", message, place=place)]) from None
    except (ValueError, OverflowError) as error:  # an escape such as "\UFFFFFFFF"
        if isinstance(error, ConfigError):
            raise
        mark = reader.loader.get_mark()
        raise ConfigError(
            [Problem("", f"not valid YAML: {error}", place=reader.place(mark.line, mark.column))]
        ) from None
    if reader.problems:
        raise ConfigError(reader.problems)
    return Document(data, reader.spans)


def advice_on(value: Any) -> str | None:
    """Returns a suggestion for text that other YAML parsers read as a boolean or number; None for other values."""
    if isinstance(value, str) and re.fullmatch(_TRUTH_WORDS, value):
        return f"{value} is parsed as text; write true or false"
    if isinstance(value, str) and re.fullmatch(_ODD_NUMBERS, value):
        return (
            f"{value} is parsed as text; write a number in plain decimal digits, without leading zeros or underscores"
        )
    return None


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.lines = self.split(text)
        self.spans: dict[Path, Span] = {}
        self.problems: list[Problem] = []
        self.count = 0
        self.loader = _Loader("", self.place)

    def read(self) -> Any:
        self.loader = _Loader(self.text, self.place)
        node = self.loader.get_single_node()
        return {} if node is None else self.plain(node, ())

    @staticmethod
    def split(text: str) -> list[str]:
        """Splits text into lines at YAML line breaks."""
        return re.split("\r\n|[\r\n\x85\u2028\u2029]", text)

    def place(self, line: int, column: int, length: int = 1) -> Place:
        source = self.lines[line] if line < len(self.lines) else None
        return Place(self.file, line + 1, column + 1, length, source)

    def plain(self, node: yaml.Node, path: Path) -> Any:
        self.count += 1
        if self.count > MAX_VALUES or len(path) > MAX_DEPTH:
            # Reached only by aliases, which expand to more values than the text has; the text was checked before.
            raise ConfigError([(too_deep if len(path) > MAX_DEPTH else too_many)(self.node_place(node))])
        if id(node) in self.loader.tagged:
            tag = self.loader.tagged[id(node)].replace(_PREFIX, "!!")
            self.problem(path, f"the tag {tag} is not allowed; a config is plain data", node)
            return None
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(child, self.remember((*path, i), child, child)) for i, child in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        return self.scalar(node, path)

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or id(key_node) in self.loader.tagged:
                self.problem(path, "a key must be plain text", key_node)
                continue
            key = key_node.value
            if key == "<<" and key_node.style is None:
                message = "merge keys (<<) are not supported; put the shared part in a separate file of the stack"
                self.problem(path, message, key_node)
                continue
            if key in found:
                self.problem((*path, key), f"the key '{key}' occurs twice", key_node)
            self.require_unicode(key, path, key_node)
            found[key] = self.plain(value_node, self.remember((*path, key), key_node, value_node))
        return found

    def scalar(self, node: yaml.Node, path: Path) -> Any:
        kind, text = node.tag.removeprefix(_PREFIX), node.value
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "int" and len(text) > MAX_DIGITS:
            self.problem(path, f"a number of {len(text)} digits is too long", node)
            return 0
        if kind == "int":
            return int(text)
        if kind == "float" and text[-1].isalpha():
            return float(text.replace(".", ""))
        if kind == "float":
            number = float(text)
            if math.isinf(number):
                self.problem(path, f"{text[:40]} is too large for a number; write .inf for infinity", node)
            return number
        self.require_unicode(text, path, node)
        return text

    def require_unicode(self, text: str, path: Path, node: yaml.Node) -> None:
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            self.problem(path, "the text contains half of a surrogate pair, which is not a character", node)

    def remember(self, path: Path, key: yaml.Node, value: yaml.Node) -> Path:
        at_key = self.node_place(key)
        # A block starts on another line and an empty value has no position, so both get the position of the key.
        shown = value.end_mark.index > value.start_mark.index and not (
            isinstance(value, yaml.CollectionNode) and not value.flow_style
        )
        self.spans.setdefault(path, Span(at_key, self.node_place(value) if shown else at_key))
        return path

    def node_place(self, node: yaml.Node) -> Place:
        start, end = node.start_mark, node.end_mark
        length = max(1, end.column - start.column) if end.line == start.line else 1
        return self.place(start.line, start.column, length)

    def problem(self, path: Path, message: str, node: yaml.Node) -> None:
        self.problems.append(Problem(format_path(path) if path else "", message, place=self.node_place(node)))
