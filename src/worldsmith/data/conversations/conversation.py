"""Conversations before tokenization: turns of texts, images and videos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from worldsmith.data.stream.errors import SampleError

Role = Literal["system", "user", "assistant"]
ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "label": "assistant",
}
"""Role names in datasets → our role names."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a turn: a text, an image or a video."""

    kind: Literal["text", "image", "video"]
    text: str = ""
    source: str | bytes = ""
    """File of an image or video; for an image also its bytes or a data URI."""
    fps: float | None = None
    """Frame rate (fps) of a video that the dataset states; None = as in the file."""
    resized: tuple[int, int] | None = None
    """(height, width) in pixels that the dataset requests, before rounding; None = as in the loader's settings."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The texts of all parts, joined."""
        return "".join(part.text for part in self.parts)


def say(role: Role, *parts: str | Part) -> Turn:
    """Builds a turn; strings become text parts."""
    return Turn(role, tuple(Part("text", part) if isinstance(part, str) else part for part in parts))


def role_of(name: object) -> Role:
    """Converts the role name of a dataset; raises SampleError (unknown_role) for any other name."""
    if not isinstance(name, str) or name not in ROLES:
        raise SampleError("unknown_role", f"expected one of {', '.join(ROLES)}, found {name!r}")
    return ROLES[name]


def check_turns(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Checks that turns can be used for training, and returns them.

    Raises:
        SampleError: no_answer without an answer or with an empty one; bad_record for an invalid order or invalid
            content.
    """
    answers = [turn for turn in turns if turn.role == "assistant"]
    if not answers or any(not turn.text.strip() for turn in answers):
        raise SampleError("no_answer", f"{len(turns)} turns, {len(answers)} of the assistant; each must have text")
    for number, turn in enumerate(turns, start=1):
        try:
            turn.text.encode()
        except UnicodeEncodeError:
            raise SampleError("bad_record", f"turn {number} contains half of a surrogate pair") from None
        if turn.role != "user" and any(part.kind != "text" for part in turn.parts):
            raise SampleError("bad_record", f"turn {number} ({turn.role}) has images or videos; only user turns may")
        if turn.role == "system" and number > 1:
            raise SampleError("bad_record", f"turn {number} is a system turn, which must be the first")
        if turn.role == "assistant" and (number == 1 or turns[number - 2].role != "user"):
            raise SampleError("bad_record", f"turn {number} (assistant) does not follow a user turn")
    return tuple(turns)


def question(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Returns the turns before the last answer; all turns if there is no answer."""
    last = max((number for number, turn in enumerate(turns) if turn.role == "assistant"), default=len(turns))
    return tuple(turns[:last])
