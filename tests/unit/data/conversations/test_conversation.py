"""Roles and turns that can be trained on."""

from __future__ import annotations

import pytest

from worldsmith.data.conversations.conversation import Part, Turn, check_turns, question, role_of, say
from worldsmith.data.stream.errors import SampleError

USER, ANSWER = say("user", "Is it plausible?"), say("assistant", "yes")


def test_roles_have_the_names_of_the_formats() -> None:
    assert [role_of(name) for name in ("human", "user", "gpt", "assistant", "label", "system")] == [
        "user", "user", "assistant", "assistant", "assistant", "system",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["tool", "bot", "Human", "", None, 3, ["user"]])
def test_unknown_roles_are_refused(name: object) -> None:
    with pytest.raises(SampleError, match="unknown_role: expected one of system, user, human, assistant, gpt, label"):
        role_of(name)


def test_sound_turns_pass_as_they_are() -> None:
    turns = (say("system", "Be brief."), USER, ANSWER, USER, ANSWER)
    assert check_turns(list(turns)) == turns


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ([], "no_answer: 0 of 0 turns"),
        ([USER], "no_answer: 0 of 1 turns are from the assistant"),
        ([USER, say("assistant", " \n")], "no_answer"),
        ([ANSWER], "turn 1 .assistant. does not follow"),
        ([USER, ANSWER, ANSWER], "turn 3 .assistant. does not follow"),
        ([USER, say("system", "x"), USER, ANSWER], "turn 2 is a system turn"),
        ([USER, say("assistant", "see ", Part("image", source="a.png"))], "turn 2 .assistant. has images"),
    ],
)
def test_other_turns_are_refused(turns: list[Turn], words: str) -> None:
    with pytest.raises(SampleError, match=words):
        check_turns(turns)


def test_the_question_is_what_comes_before_the_last_answer() -> None:
    assert question((USER, ANSWER, USER, say("assistant", "no"))) == (USER, ANSWER, USER)
    assert question((USER,)) == (USER,)
