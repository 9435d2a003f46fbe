"""Values in command-line notation: ``1e-4``, ``[a, b]``, ``{k: v}``, ``null``, ``'text'``, text.

The type of unquoted text depends on its field: ``123`` is a number for an int and text for a str. So the text is parsed
to literals first, and each literal is then converted to the type of the field.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from worldsmith.config.declare.value_types import fits, item_hint, union_members
from worldsmith.config.text_file import MAX_DEPTH

_INTEGER = re.compile(r"[+-]?\d{1,400}(_\d{1,400})*", re.ASCII)
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE | re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A literal that is not a list or mapping: its text without quotes, and whether it was quoted.

    Quoted text stays a string; unquoted text can also be a number, boolean or null.
    """

    text: str
    quoted: bool = False


Literal = Scalar | list[Any] | dict[str, Any]


def read_text(text: str, hint: Any) -> Any:
    """Parses the text of an override or environment variable as the value of a field.

    Args:
        text: Text of the value.
        hint: Type of the field.

    Returns:
        The value; one of another type if the text does not fit the field, which is not an error here.

    Raises:
        ValueError: If brackets or quotes are malformed.
    """
    stripped = text.strip()
    if stripped[:1] in ("'", '"'):
        try:
            return fit_literal(parse_literal(stripped), hint)
        except ValueError:
            if fits(text, hint):  # text such as "it's" or 'a' and 'b'
                return text
            raise
    if stripped[:1] in ("[", "{") and not _text_only(hint):
        return fit_literal(parse_literal(stripped), hint)
    return fit_literal(Scalar(text), hint)


def fit_literal(literal: Literal, hint: Any) -> Any:
    """Converts a literal to a value of a field.

    Args:
        literal: Parsed literal.
        hint: Type of the field.

    Returns:
        The value; quoted text as a string. Unquoted text that does not fit the type is parsed by its form, such as
        a number for ``3``.
    """
    if isinstance(literal, Scalar):
        if literal.quoted:
            return literal.text
        value = decode(literal.text)
        return literal.text if not fits(value, hint) and fits(literal.text, hint) else value
    if isinstance(literal, list):
        return [fit_literal(item, item_hint(hint, list)) for item in literal]
    return {key: fit_literal(item, item_hint(hint, dict)) for key, item in literal.items()}


def decode(text: str) -> Any:
    """Parses unquoted text as a number, boolean or null; returns any other text unchanged."""
    plain = text.strip()
    if plain == "None":  # as in Python; a string field without null gets the text
        return None
    if plain.lower() in _WORDS:
        return _WORDS[plain.lower()]
    if _INTEGER.fullmatch(plain):
        return int(plain)
    if _FLOAT.fullmatch(plain):
        return float(plain)
    return text


def literal_list(words: Sequence[str]) -> list[Literal]:
    """Parses each argument as one list item: a list or dict such as ``[1, 2]``, quoted text, or unquoted text.

    Raises:
        ValueError: If an argument is malformed.
    """
    return [parse_literal(word) if word[:1] in ("[", "{", "'", '"') else Scalar(word) for word in words]


def parse_literal(text: str) -> Literal:
    """Parses text as one Python literal, such as 1e-4, [1, 2] or {"a": None}.

    The result is a `Scalar`, or a list or dict of such results.

    Raises:
        ValueError: If the text is malformed, with the position.
    """
    parser = _Parser(text)
    literal = parser.value(0, "")
    parser.skip_space()
    if parser.position < len(text):
        raise parser.error("the value ends here, but more follows")
    return literal


def _text_only(hint: Any) -> bool:
    return all(member in (str, type(None)) for member in union_members(hint))


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def error(self, message: str) -> ValueError:
        shown = self.text if len(self.text) <= 110 else f"{self.text[:110]}…"
        return ValueError(f"{message} (at character {self.position + 1} of {shown!r})")

    def skip_space(self) -> None:
        while self.peek().isspace():
            self.position += 1

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def value(self, depth: int, stops: str) -> Literal:
        if depth > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep")
        self.skip_space()
        letter = self.peek()
        if letter == "[":
            return self.items(depth)
        if letter == "{":
            return self.entries(depth)
        if letter in ("'", '"') and letter:
            return Scalar(self.quoted(), quoted=True)
        return Scalar(self.bare(stops))

    def items(self, depth: int) -> list[Any]:
        self.position += 1
        found: list[Any] = []
        while not self.closes("]"):
            found.append(self.value(depth + 1, ",]"))
            self.separator("]")
        return found

    def entries(self, depth: int) -> dict[str, Any]:
        self.position += 1
        found: dict[str, Any] = {}
        while not self.closes("}"):
            self.skip_space()
            key = self.quoted() if self.peek() in ("'", '"') else self.bare(":=,}")
            self.skip_space()
            if self.peek() not in (":", "="):
                raise self.error(f"expected ':' after the key '{key}'")
            self.position += 1
            if key in found:
                raise self.error(f"the key '{key}' is given twice")
            found[key] = self.value(depth + 1, ",}")
            self.separator("}")
        return found

    def closes(self, bracket: str) -> bool:
        self.skip_space()
        if not self.peek():
            raise self.error(f"expected '{bracket}'")
        if self.peek() != bracket:
            return False
        self.position += 1
        return True

    def separator(self, bracket: str) -> None:
        self.skip_space()
        if self.peek() == ",":
            self.position += 1
        elif self.peek() != bracket:
            raise self.error(f"expected ',' or '{bracket}'")

    def quoted(self) -> str:
        quote, text = self.peek(), ""
        self.position += 1
        while self.peek() != quote:
            letter = self.peek()
            if not letter:
                raise self.error(f"the text has no closing {quote}")
            if letter == "\\":
                follower = self.text[self.position + 1 : self.position + 2]
                # Other escapes stay unchanged, so that regular expressions and Windows paths survive.
                text += _ESCAPES.get(follower, f"\\{follower}")
                self.position += 1
            else:
                text += letter
            self.position += 1
        self.position += 1
        return text

    def bare(self, stops: str) -> str:
        """Reads unquoted text up to one of the characters in `stops`, and returns it without surrounding spaces.

        Characters inside a reference ${…} do not end the text. Raises ValueError if the text is empty.
        """
        start, depth = self.position, 0
        while letter := self.peek():
            if self.text.startswith("${", self.position):
                depth += 1
            elif letter == "}" and depth:
                depth -= 1
                self.position += 1
                continue
            if not depth and letter in stops:
                break
            self.position += 1
        text = self.text[start : self.position].strip()
        if not text:
            raise self.error("a value is missing")
        return text
