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
    """Part of a turn: text, an image or a video."""

    kind: Literal["text", "image", "video"]
    text: str = ""
    source: str | bytes = ""
    """Path or address of an image or video; for an image also its bytes or a data URI."""
    fps: float | None = None
    """Frame rate that the dataset states for a video; None = frame rate of the file."""
    resized: tuple[int, int] | None = None
    """(height, width) in pixels that the dataset requests for resizing, before rounding; None = set by the config."""
    frames: tuple[int, int | None] | None = None
    """Index of the first frame of a video that is used, and of the frame after the last one (None: its end); None = all
    frames."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """Concatenated text of all text parts."""
        return "".join(part.text for part in self.parts)


def say(role: Role, *parts: str | Part) -> Turn:
    """Returns the turn of a role with these parts in order; strings become text parts."""
    return Turn(role, tuple(Part("text", part) if isinstance(part, str) else part for part in parts))


def role_of(name: object) -> Role:
    """Returns the role for a role name in a dataset, such as "human"; SampleError (unknown_role) for other names."""
    if not isinstance(name, str) or name not in ROLES:
        raise SampleError("unknown_role", f"expected one of {', '.join(ROLES)}, found {name!r}")
    return ROLES[name]


def check_turns(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Returns the turns of a conversation as a tuple, if they can be used for training.

    Raises:
        SampleError: no_answer if the assistant has no turn or an empty one; bad_record if the order of the roles or
            the content of a turn is invalid.
    """
    answers = [turn for turn in turns if turn.role == "assistant"]
    if not answers or any(not turn.text.strip() for turn in answers):
        raise SampleError(
            "no_answer",
            f"{len(answers)} of {len(turns)} turns are from the assistant: expected at least one, each with text",
        )
    for number, turn in enumerate(turns, start=1):
        try:
            turn.text.encode()
        except UnicodeEncodeError:
            raise SampleError("bad_record", f"turn {number} contains half of a surrogate pair") from None
        if turn.role != "user" and any(part.kind != "text" for part in turn.parts):
            raise SampleError(
                "bad_record", f"turn {number} ({turn.role}) has images or videos, which only user turns may have"
            )
        if turn.role == "system" and number > 1:
            raise SampleError("bad_record", f"turn {number} is a system turn: only the first turn may be one")
        if turn.role == "assistant" and (number == 1 or turns[number - 2].role != "user"):
            raise SampleError("bad_record", f"turn {number} (assistant) does not follow a user turn")
    return tuple(turns)


def question(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Returns the turns before the last answer; all turns if there is no answer."""
    last = max((number for number, turn in enumerate(turns) if turn.role == "assistant"), default=len(turns))
    return tuple(turns[:last])
