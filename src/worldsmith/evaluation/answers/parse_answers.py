"""Parses answers that are one of a few values: letters of options, directions, yes and no, ratings."""

from __future__ import annotations

import re

from worldsmith.evaluation.answers.answer_text import normalize

LETTERS = "ABCD"
_OPTION = r"(?<![A-Za-z0-9])[(\[{]?([A-Ja-j])[)\]}]?(?![A-Za-z0-9'’])"
_CAPITAL = _OPTION.replace("A-Ja-j", "A-J")
_ARTICLE = r"(?<![A-Za-z])A(?=\s+(?!(?:because|since|as|is|due|given|for|based|with)\b)[a-z])"
"""Matches a sentence start such as "A person walks", whose A is not an option, unlike "A because …"."""
_END = r"(?=[ \t]*(?:\Z|[).:,;!\n]))"
_NAMED = r"(?:(?:option|choice|letter)\s+)?"
QUOTES = " \t\r\n\"'“”‘’<>"
MARKUP = re.compile(r"\\(?:text|textbf|mathbf|mathrm|bf)\b|[*`#$]")
BOXED = re.compile(r"\\boxed\s*\{+([^{}]*)\}")
JOINED = re.compile(
    rf"(?:(?i:\b(?:both|either|neither)\s+))?{_NAMED}{_CAPITAL}"
    rf"(?:\s*(?:,\s*(?:and|or|nor)?|/|&|and|or|nor)\s*{_NAMED}{_CAPITAL}(?!\s*[:.)]\s*[A-Za-z]))+"
)
"""Several options at once, such as "both A and B", which count as no choice."""
STATED = re.compile(
    rf"(?i:\b(?:answer|option|choice)\s*(?:(?:is|was|must\s+be|should\s+be|would\s+be|will\s+be)\b|[:：=–—\n-])"
    rf"|\b(?:choose|chose|select|selected|pick|picked|go\s+with)\b|答案(?:应该)?[是为]?|选(?:项|择)?)"
    rf"[^\w([{{]*(?i:(?:the\s+)?{_NAMED})(?:{_CAPITAL}|{_OPTION.replace('A-Ja-j', 'a-j')}{_END})"
    rf"|(?i:(?:^|[.;:,\n]|\b(?:option|choice|answer|letter|that|so|thus|therefore))\s*){_CAPITAL}"
    rf"\s+(?i:(?:is|seems|looks)\s+(?:the\s+)?(?:most\s+)?(?:correct|right|best|accurate|plausible|likely)\b)"
)
"""Matches a stated answer. A lowercase letter counts only at the end: "the answer is a car" names no option."""
LISTED = re.compile(rf"(?:^|\n)\s*{_NAMED}{_CAPITAL}\s*[).:\]]", re.IGNORECASE)
INLINE = re.compile(rf"{_CAPITAL}(?<=[)\]])|{_CAPITAL}(?=[.:])")
LEADING = re.compile(rf"[^\w([{{]*(?i:{_NAMED}){_OPTION}(?:\s*[.:,]|(?<=[)\]}}])|[ \t]*(?:\n|\Z)|\s+[-–—])")
"""Matches a letter at the start of a text: "B) …", "(B) …", "B. …", "Option B: …", "B - …", or alone on its line."""

YES_NO = ("yes", "no")
YES_NO_WORD = re.compile(r"\b(yes|no)\b")
LEADING_YES_NO = re.compile(r"\W*(yes|no)\b")
STATED_YES_NO = re.compile(r"\banswer\s*(?:is\b\s*:?|:)\W*(yes|no)\b")
ECHO = re.compile(r"\byes\s*(?:or|/|\|)\s*no\b|\bno\s*(?:or|/|\|)\s*yes\b")
"""Matches a repetition of the question, which is not an answer."""

DIRECTIONS = ("going straight", "turning right", "turning left")

RATINGS = (1, 2, 3, 4, 5)
LONE_RATING = re.compile(r"\b([1-5])\b")


def parse_letter(text: str, letters: str = LETTERS) -> str | None:
    r"""Returns the option letter that a text chooses, in upper case.

    Args:
        text: The answer.
        letters: Valid letters.

    Returns:
        The letter in the last ``\boxed{}``, else the last one that the text calls its answer, else the one that the
        text begins with. None if the text chooses several letters at once or only repeats the options.
    """
    text = MARKUP.sub("", text)
    if boxed := BOXED.findall(text):
        text = boxed[-1]
    text = text.strip(QUOTES)
    normalized = JOINED.sub(" ", re.sub(_ARTICLE, "a", text))
    stated = ["".join(groups) for groups in STATED.findall(normalized)]
    leading = LEADING.match(normalized)
    if not stated and leading and not _is_echo(normalized):
        stated = [leading[1]]
    letter = stated[-1].upper() if stated else ""
    return letter if letter and letter in letters else None


def _is_echo(text: str) -> bool:
    """Returns whether a text repeats the options: two different letters at line starts, or three anywhere."""
    return len(set(LISTED.findall(text))) > 1 or len(set(map("".join, INLINE.findall(text)))) > 2


def parse_direction(text: str) -> str | None:
    """Returns the first label in `DIRECTIONS`, such as "turning left", whose last word ("left") occurs in the text.

    None if no label matches. Case is ignored.
    """
    normalized = text.lower()
    return next((label for label in DIRECTIONS if label.rpartition(" ")[2] in normalized), None)


def parse_side(text: str) -> str | None:
    """Returns "left" or "right" if only one of the two words occurs in the text; else None."""
    words = set(re.findall(r"\b(left|right)\b", text.lower()))
    return str(words.pop()) if len(words) == 1 else None


def parse_rating(text: str) -> int | None:
    """Returns the first separate digit from 1 to 5 in the text: "2.5" gives 2, "4/5" gives 4, "10" gives None."""
    found = LONE_RATING.search(text)
    return int(found[1]) if found else None


def parse_yes_no(text: str) -> str | None:
    """Returns the answer "yes" or "no" that a text gives; None if it is not clear.

    If only one of the two words occurs, it is the answer; else the word at the start of the text, else the last one
    after "answer is" or "answer:".
    """
    normalized = ECHO.sub(" ", text.lower().replace("_", " "))
    words = set(YES_NO_WORD.findall(normalized))
    if len(words) == 1:
        return str(words.pop())
    found = LEADING_YES_NO.match(normalized)
    if found:
        return found[1]
    marked = STATED_YES_NO.findall(normalized)
    return str(marked[-1]) if marked else None


def plain_yes_no(text: str) -> str | None:
    """Returns "yes" or "no" if the text is only that word, apart from case and punctuation; else None."""
    word = normalize(text, articles=True)
    return word if word in YES_NO else None
