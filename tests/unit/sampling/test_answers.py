"""Answers go to the conversations that they are for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worldsmith.assets import asset_path
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.conversation import Part, say
from worldsmith.sampling.answers import Answerer


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
