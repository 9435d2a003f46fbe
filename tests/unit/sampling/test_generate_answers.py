"""Answers go to the conversations that they are for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from worldsmith.assets import asset_path
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.conversation import Part, say
from worldsmith.sampling.generate_answers import Answerer


class Repeating:
    """Says the whole prompt."""

    folder = Path(asset_path("tiny_reasoner"))

    def generate(self, prompts: Sequence[Any], **_: Any) -> list[list[int]]:
        return [prompt.input_ids.tolist() for prompt in prompts]


def test_conversations_of_one_key_get_their_own_answers() -> None:
    """One of them cannot be read; in the last batch nothing is left to ask."""
    gone = Part("image", source="gone.png")
    turns = [say("user", "red"), say("user", gone, "green"), say("user", "blue"), say("user", gone, "grey")]
    answerer = Answerer(Repeating(), ChatProcessor.Config())
    answers = list(answerer.answers([("same", [turn]) for turn in turns], batch_size=3, max_new_tokens=1))
    assert [answer.key for answer in answers] == ["same"] * 4
    assert ["gone.png" in answer.error for answer in answers] == [False, True, False, True]
    assert "red" in answers[0].text
    assert "blue" in answers[2].text
    assert [answers[1].text, answers[3].text] == ["", ""]


class Forgetful(Repeating):
    """Has memory for two short prompts, and for none that is long."""

    def generate(self, prompts: Sequence[Any], **settings: Any) -> list[list[int]]:
        if sum(len(prompt.input_ids) for prompt in prompts) > 40:
            raise RuntimeError("CUDA out of memory.\nTried to allocate")
        return super().generate(prompts)


def test_what_a_model_fails_at_is_asked_alone_and_told() -> None:
    texts = ["red", "word " * 60, "blue", "green"]
    asked = [(str(index), [say("user", text)]) for index, text in enumerate(texts)]
    answerer = Answerer(Forgetful(), ChatProcessor.Config())
    answers = list(answerer.answers(asked, batch_size=4, max_new_tokens=1, forgiving=True))
    assert [answer.error for answer in answers] == ["", "generation: CUDA out of memory.", "", ""]
    assert [answer.key for answer in answers] == ["0", "1", "2", "3"]
    assert answers[1].was_asked
    assert "green" in answers[3].text
    with pytest.raises(RuntimeError, match="out of memory"):
        list(answerer.answers(asked, batch_size=4, max_new_tokens=1))
