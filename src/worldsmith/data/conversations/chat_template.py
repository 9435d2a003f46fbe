"""The chat template of a model folder: texts of conversations, and where in them the assistant speaks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worldsmith.data.conversations.conversation import Turn, say
from worldsmith.data.stream.errors import DataError, SampleError, check_text

ASKED, ANSWERED = ("FIRSTQUESTION", "SECONDQUESTION"), ("FIRSTANSWER", "SECONDANSWER")
"""Texts of the conversation in which the template is seen at work; no template knows them."""


class ChatTemplate:
    """Writes conversations as the template does, and finds the answers in what it has written.

    An answer begins where the model would begin to speak: after the role's header, and after what else a generation
    prompt writes (such as an opened `<think>`) where the template has written that, too. It ends with the token that
    ends the turn. Header and end are learnt from the template itself. They hold special tokens, which no text of a
    conversation may hold; so nothing that a user writes can look like them.
    """

    def __init__(self, tokenizer: Any, folder: Path) -> None:
        """Raises DataError for a folder without a template, or one whose answers cannot be told apart."""
        self.tokenizer = tokenizer
        if tokenizer.chat_template is None:
            tokenizer.chat_template = separate_template(folder)
        added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self.special_tokens = sorted({*added, *tokenizer.all_special_tokens}, key=len, reverse=True)
        self.special = re.compile("|".join(map(re.escape, self.special_tokens)) or r"(?!)")
        self._learn(folder)

    def render(self, turns: Sequence[Turn], *, generation_prompt: bool = False) -> str:
        """The text of a conversation, with one placeholder an image or video. Raises SampleError."""
        from jinja2.exceptions import TemplateError

        check_text("".join(turn.text for turn in turns), "the conversation")
        for number, turn in enumerate(turns, start=1):
            found = self.special.search(turn.text)
            if found:
                place = f"the text of turn {number} ({turn.role})"
                detail = f"{place} holds '{found[0]}', which belongs to the chat template; remove it"
                raise SampleError("special_token", detail)
        messages = [{"role": turn.role, "content": content_of(turn)} for turn in turns]
        try:
            return str(
                self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation_prompt)
            )
        except TemplateError as error:
            raise SampleError("template", f"the chat template refuses the conversation: {error}") from None
        except Exception as error:  # a template may do anything that Jinja's sandbox allows
            raise SampleError("template", f"the chat template fails: {type(error).__name__}: {error}") from None

    def answers(self, text: str) -> list[tuple[int, int]]:
        """(start, end) of every answer in a rendered text, with the token that ends its turn."""
        return [found.span(1) for found in self._answer.finditer(text)]

    def _learn(self, folder: Path) -> None:
        turns = [turn for asks, says in zip(ASKED, ANSWERED) for turn in (say("user", asks), say("assistant", says))]
        try:
            both, asked = self.render(turns), self.render(turns[:1])
            opened = self.render(turns[:1], generation_prompt=True)
            between = both[after(both, ASKED[0]) : both.index(ANSWERED[0])]
            tail, opening = asked[after(asked, ASKED[0]) :], opened[after(opened, ASKED[0]) :]
            ends = [self.special.search(both, after(both, answer)) for answer in ANSWERED]
        except (SampleError, ValueError) as error:
            raise DataError(f"the chat template of {folder} cannot be used: {error}") from None
        header = shared_start(between, opening).removeprefix(tail)
        if not self.special.search(header) or None in ends:
            raise DataError(
                f"the chat template of {folder} does not mark the beginning and the end of an answer with special "
                f"tokens (it begins with {header!r}), so that its labels cannot be told; use a template that does",
                code=126,
            )
        rest = re.escape(opening.removeprefix(tail).removeprefix(header))
        end = "|".join(re.escape(found[0]) for found in ends if found)
        self._answer = re.compile(f"{re.escape(header)}(?:{rest})?(.*?(?:{end}))", re.DOTALL)


def content_of(turn: Turn) -> str | list[dict[str, str]]:
    """Text as it is, which every template takes; typed parts where there is an image or a video."""
    if all(part.kind == "text" for part in turn.parts):
        return turn.text
    return [{"type": "text", "text": p.text} if p.kind == "text" else {"type": p.kind} for p in turn.parts]


def shared_start(one: str, other: str) -> str:
    differs = next((place for place, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    return one[:differs]


def after(text: str, part: str) -> int:
    return text.index(part) + len(part)


def separate_template(folder: Path) -> str:
    """The template of a file that tokenizers do not read by themselves. Raises DataError when there is none."""
    file = folder / "chat_template.json"
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["chat_template"])
    except FileNotFoundError:
        raise DataError(
            f"{folder} has no chat template: neither chat_template.jinja nor chat_template.json, nor one in "
            "tokenizer_config.json; copy it from the model's repository",
            code=126,
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} holds no chat template: {error!r}") from None
