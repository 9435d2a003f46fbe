"""What answers say: every odd form of them, by a table."""

from __future__ import annotations

import pytest

from worldsmith.evaluation.answers.answer_text import normalize, parse_number, split_answer, token_f1
from worldsmith.evaluation.answers.parse_answers import (
    parse_direction,
    parse_letter,
    parse_side,
    parse_yes_no,
    plain_yes_no,
)


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("yes", "", "yes"),
        ("<think>It falls.</think><answer>no</answer>", "It falls.", "no"),
        ("<think>It falls.</think>\n\nno", "It falls.", "no"),
        ("It falls.</think> no", "It falls.", "no"),
        ("<answer>yes</answer> but <answer>No.</answer>", "", "No."),
        ("<ANSWER>A red\ncar</ANSWER>", "", "A red\ncar"),
        ("<answer>yes", "", "yes"),
        ("<think>It falls, yes, it", "It falls, yes, it", ""),
        ("<think><answer>yes</answer></think><answer>no</answer>", "<answer>yes</answer>", "no"),
        ("", "", ""),
    ],
)
def test_an_answer_stands_apart_from_its_reasoning(text: str, reasoning: str, answer: str) -> None:
    assert split_answer(text) == (reasoning, answer)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Yes", "yes"), (" no.\n", "no"), ("**YES**", "yes"), ("_no_", "no"), ("Yes, the ball bounces.", "yes"),
        ("The ball bounces: yes", "yes"), ("No, no and no", "no"),
        ("yesterday", None), ("I know nothing", None), ("nothing", None), ("y", None), ("", None), ("maybe", None),
        ("yes or no", None), ("Yes/No", None), ("no or yes?", None), ("Answer yes or no.", None),
        ("Yes or no? It bounces, so yes.", "yes"), ("yes/no: no", "no"),
        ("Yes, because no other ball is there", "yes"), ("No. Yes would be wrong", "no"),
        ("It could be yes, it could be no. The answer is no.", "no"),
        ("First yes then no; final answer: yes", "yes"),
        ("Neither yes, nor no: the answer is: **No**", "no"),
        ("I say yes and no", None),
    ],
)  # fmt: skip
def test_yes_and_no(text: str, word: str | None) -> None:
    assert parse_yes_no(text) == word


def test_a_true_word_stands_alone() -> None:
    texts = ["yes", " No. ", "YES!", "yes, it does", "There is no car", "", "a"]
    assert [plain_yes_no(text) for text in texts] == ["yes", "no", "yes", None, None, None, None]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("A", "A"), ("b", "B"), (" (C) ", "C"), ("D.", "D"), ("**B**", "B"), ("B) the red car", "B"), ("(a) left", "A"),
        ("C: right", "C"), ("Option D: none", "D"), ("Answer: B", "B"), ("The answer is C", "C"),
        ("The answer is (b).", "B"), ("final answer: option A, since it falls", "A"),
        ("A red car", None), ("the answer is a red car", None), ("a", "A"), ("E", None), ("AB", None), ("", None),
        ("I think so", None), ("5", None), ("B or C", None),
    ],
)  # fmt: skip
def test_letters_of_options(text: str, letter: str | None) -> None:
    assert parse_letter(text) == letter


def test_more_options_than_four_are_read_where_there_are_more() -> None:
    assert parse_letter("E", "ABCDE") == "E"


def test_directions_are_looked_for_in_their_order() -> None:
    texts = ["Turning Right", "it turns left, not right", "straight, then left", "backwards", ""]
    found = ["turning right", "turning right", "going straight", None, None]
    assert [parse_direction(text) for text in texts] == found


def test_a_side_is_the_only_one() -> None:
    assert [parse_side(text) for text in ("Left.", "to the right", "left or right", "leftover")] == [
        "left", "right", None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "number"),
    [("3", 3), ("about 1,200.5 m", 1200.5), ("-2", -2), ("3 or 4", 3), ("none", None), ("0.5", 0.5), ("12,5", 12)],
)
def test_the_first_number(text: str, number: float | None) -> None:
    assert parse_number(text) == number


def test_normalized_texts() -> None:
    assert normalize("  The Ball, A red one;\nfalls! ") == "ball red one falls"
    assert normalize("A.", articles=True) == "a"
    assert normalize("5 € – “ok”") == "5 ok"
    assert normalize("the an A") == ""


def test_overlap_of_words() -> None:
    """Of "ball falls down" 2 of 3 words are in "the ball falls", 2 of 2: F1 = 0.8."""
    assert token_f1("ball falls down", "The ball falls.") == pytest.approx(0.8)
    assert token_f1("ball ball", "ball") == pytest.approx(2 / 3)
    assert (token_f1("the", ""), token_f1("", "ball"), token_f1("ball", "")) == (1.0, 0.0, 0.0)
