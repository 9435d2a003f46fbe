"""Answers that are one of a few: letters of options, and directions."""

from __future__ import annotations

import re

LETTERS = "ABCD"
AROUND = " \t\r\n*_`\"'()[]{}.,:;!<>$"
LEADING = re.compile(r"\W*(?:(?:option|choice)\s+)?([A-Za-z])\s*[).:,\]]", re.IGNORECASE)
"""An option as it is listed: "B) …", "(B) …", "B. …", "Option B: …"."""
MARKED = re.compile(
    r"(?i:\banswer\s*(?:is\b\s*:?|:)\W*(?:(?:option|choice)\s+)?)(?:([A-Z])\b|([a-z])\b(?=\W*$|[).:,]))"
)
"""A small letter counts before punctuation or at the end only: "the answer is a car" names no option."""

DIRECTIONS = ("going straight", "turning right", "turning left")


def parse_letter(text: str, letters: str = LETTERS) -> str | None:
    """The option, in upper case: the whole text but for punctuation, or the letter that an option is listed with, or
    the last one after "answer is" or "answer:"."""
    alone = text.strip(AROUND)
    leading, marked = LEADING.match(text), MARKED.findall(text)
    found = [
        alone if len(alone) == 1 else "",
        leading[1] if leading else "",
        "".join(marked[-1]) if marked else "",
    ]
    return next((letter.upper() for letter in found if letter and letter.upper() in letters), None)


def parse_direction(text: str) -> str | None:
    """The first of straight, right and left that is anywhere in the text, in this order."""
    said = text.lower()
    return next((label for label in DIRECTIONS if label.rpartition(" ")[2] in said), None)


def parse_side(text: str) -> str | None:
    """ "left" or "right", when only one of the two words is there."""
    words = set(re.findall(r"\b(left|right)\b", text.lower()))
    return str(words.pop()) if len(words) == 1 else None
