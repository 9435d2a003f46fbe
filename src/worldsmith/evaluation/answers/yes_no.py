"""Answers to yes/no questions."""

from __future__ import annotations

import re

from worldsmith.evaluation.answers.reading import normalize

WORDS = ("yes", "no")
WORD = re.compile(r"\b(yes|no)\b")
LEADING = re.compile(r"\W*(yes|no)\b")
MARKED = re.compile(r"\banswer\s*(?:is\b\s*:?|:)\W*(yes|no)\b")
ECHO = re.compile(r"\byes\s*(?:or|/|\|)\s*no\b|\bno\s*(?:or|/|\|)\s*yes\b")
"""Of the question; it answers nothing."""


def parse_yes_no(text: str) -> str | None:
    """ "yes" or "no": the only one of the two words that is there; else the one that the text begins with; else the
    last one after "answer is" or "answer:". None when nothing of that decides."""
    said = ECHO.sub(" ", text.lower().replace("_", " "))
    words = set(WORD.findall(said))
    if len(words) == 1:
        return str(words.pop())
    found = LEADING.match(said)
    if found:
        return found[1]
    marked = MARKED.findall(said)
    return str(marked[-1]) if marked else None


def plain_yes_no(text: str) -> str | None:
    """ "yes" or "no" when the text is nothing else, but for case and punctuation."""
    word = normalize(text, articles=True)
    return word if word in WORDS else None
