"""Which answers are gaps, and of which kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from worldsmith.evaluation.answers.choices import LETTERS, parse_letter, parse_yes_no
from worldsmith.evaluation.answers.reading import normalize

Mode = Literal["exact", "normalized", "yes_no", "letter"]
ErrorType = Literal["FP", "FN", "wrong", "unparsed", "missing", "format"]
FAILED = ("prep_error", "gen_error")
"""What the status of a row is that has no answer."""


@dataclass(frozen=True, slots=True)
class Gap:
    """An answer that is not the true one."""

    error_type: ErrorType
    """FP: yes where no is true; FN: no where yes is; format: the answer is right and was not said as compared."""
    normalized: str | None
    """The answer as it was compared; None: there is none, or it could not be read."""

    @property
    def format_only(self) -> bool:
        return self.error_type == "format"


def plain(text: str) -> str:
    """What the exact comparison sees."""
    return text.lower().strip()


def normalized(text: str) -> str:
    """Without case, punctuation and articles; a text that is nothing but an article is the name of an option."""
    return normalize(text) or normalize(text, articles=True)


READ: Mapping[str, Callable[[str], str | None]] = {
    "exact": plain,
    "normalized": normalized,
    "yes_no": parse_yes_no,
    "letter": parse_letter,
}
"""How a text is read in each mode; None: it cannot be."""


def compare(row: Mapping[str, Any], mode: Mode) -> Gap | None:
    """The gap of a row of results; None where its answer is the true one in this mode.

    Raises ValueError for an answer whose true one the mode cannot read.
    """
    said, true = row.get("response"), text_of(row.get("gt"))
    if said is None or row.get("status") in FAILED:
        return Gap("missing", None)
    wanted = READ[mode](true)
    if wanted is None:
        raise ValueError(f"its true answer {true!r:.60} cannot be read as {mode}")
    found = READ[mode](text_of(said))
    return None if found == wanted else Gap(kind_of(text_of(said), true), found)


def kind_of(said: str, true: str) -> ErrorType:
    """What is wrong with an answer, as it is understood when one is lenient with its form."""
    word = parse_yes_no(true) if normalized(true) in ("yes", "no") else None
    letter = parse_letter(true) if len(normalized(true)) == 1 and normalized(true).upper() in LETTERS else None
    if normalized(said) == normalized(true) and normalized(true):
        return "format"
    if word is None and letter is None:
        return "wrong"
    found, wanted = (parse_yes_no(said), word) if word else (parse_letter(said), letter)
    if found is None:
        return "unparsed"
    if found == wanted:
        return "format"
    return "wrong" if letter else "FP" if found == "yes" else "FN"


def text_of(value: Any) -> str:
    """The text of an answer; numbers and truth values as JSON writes them, None as nothing."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)
