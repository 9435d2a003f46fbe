"""Extracts the answer from generated text: without reasoning, and normalized for comparison."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)
OPENED = re.compile(r"<think>", re.IGNORECASE)
CLOSED = re.compile(r"</think>", re.IGNORECASE)
ARTICLES = ("a", "an", "the")
NUMBER = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?")


def split_answer(text: str) -> tuple[str, str]:
    """Splits generated text into (reasoning, answer).

    The answer is the content of the last `<answer>` tag, else the text after the reasoning. Reasoning ends with
    `</think>`, even without `<think>`, because a chat template may have added that tag. If the token limit cut off the
    reasoning, the answer is the text before `<think>`, usually "".
    """
    reasoning, rest = "", text
    if closed := list(CLOSED.finditer(text)):
        reasoning, rest = text[: closed[-1].start()], text[closed[-1].end() :]
    elif opened := OPENED.search(text):
        reasoning, rest = text[opened.end() :], text[: opened.start()]
    if answers := ANSWER.findall(rest):
        rest = answers[-1]
    return OPENED.sub("", reasoning).strip(), rest.strip()


def normalize(text: str, *, articles: bool = False) -> str:
    """Normalizes a text for comparison: lowercase, no punctuation or symbols, single spaces.

    Args:
        text: The text.
        articles: Whether "a", "an" and "the" are kept.
    """
    kept = "".join(sign for sign in text.lower() if unicodedata.category(sign)[0] not in "PS")
    return " ".join(word for word in kept.split() if articles or word not in ARTICLES)


def token_f1(answer: str, truth: str) -> float:
    """Computes the token F1, 2PR / (P + R), of the normalized answer and ground truth (Rajpurkar et al. 2016)."""
    answer_tokens, truth_tokens = Counter(normalize(answer).split()), Counter(normalize(truth).split())
    if not answer_tokens or not truth_tokens:
        return float(answer_tokens == truth_tokens)
    shared = (answer_tokens & truth_tokens).total()
    return 2 * shared / (answer_tokens.total() + truth_tokens.total())


def parse_number(text: str) -> float | None:
    """Returns the first number in a text, such as 1200.5 in "1,200.5 m"; None if it has no number."""
    found = NUMBER.search(text)
    return float(found[0].replace(",", "")) if found else None
