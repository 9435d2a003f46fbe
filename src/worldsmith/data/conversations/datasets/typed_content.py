"""Messages with typed content: text, or a list of parts that each state their type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from worldsmith.data.conversations.conversation import Part, Turn, role_of
from worldsmith.data.stream.errors import SampleError

TEXTS = ("text", "input_text", "output_text")
MEDIA: dict[str, Literal["image", "video"]] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "video": "video",
    "video_url": "video",
}
RESIZED = ("resized_height", "resized_width")
"""Keys of a part with the size that an image, or each frame of a video, is brought to."""
UNREAD = ("weight", "tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
"""Keys of a message that would change what is trained, and that are not read."""

Medium = Callable[[Literal["image", "video"], Any], Part]


def parse_messages(messages: Any, medium: Medium, *, role_key: str = "role", text_key: str = "content") -> list[Turn]:
    """Turns of a list of messages; `medium` makes an image or a video of what a part names. Raises SampleError."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise SampleError("bad_record", f"expected a list of messages, found {shown(messages)}")
    turns = []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            raise SampleError("bad_record", f"message {number} must be an object, found {shown(message)}")
        unread = [name for name in UNREAD if message.get(name) is not None]
        if unread:
            raise SampleError("bad_record", f"message {number} has '{unread[0]}', which is not read")
        parts = parse_content(message.get(text_key), medium, f"'{text_key}' of message {number}")
        turns.append(Turn(role_of(message.get(role_key)), parts))
    return turns


def parse_content(content: Any, medium: Medium, where: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Part("text", content),)
    if not isinstance(content, list):
        raise SampleError("bad_record", f"{where} must be text or a list of parts, found {shown(content)}")
    return tuple(parse_part(part, medium, where) for part in content)


def parse_part(part: Any, medium: Medium, where: str) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in (*TEXTS, *MEDIA):
        raise SampleError("bad_record", f"{where} has a part of type {kind!r}; known: {', '.join([*TEXTS, *MEDIA])}")
    given = {name for name, value in part.items() if value is not None}
    further = sorted(given - {"type", "text", "detail", "image", "video", "image_url", "video_url", *RESIZED})
    if further:
        raise SampleError(
            "bad_record", f"{where}: '{further[0]}' of a part is not read; limits and rates are set for all"
        )
    if kind in TEXTS:
        if not isinstance(part.get("text"), str):
            raise SampleError("bad_record", f"{where}: a text part needs text, found {shown(part.get('text'))}")
        return Part("text", part["text"])
    named = part.get("image_url" if kind == "input_image" else kind)
    if isinstance(named, dict):
        named = named.get("url")
    return replace(medium(MEDIA[kind], named), resized=parse_size(part, where))


def parse_size(part: dict[str, Any], where: str) -> tuple[int, int] | None:
    """(height, width) that a part asks for, as qwen-vl-utils reads them; None = it asks for none."""
    height, width = (part.get(name) for name in RESIZED)
    if height is None and width is None:
        return None
    if type(height) is not int or type(width) is not int or min(height, width) < 1:
        found = f"found {shown(height)} and {shown(width)}"
        raise SampleError("bad_record", f"{where}: {' and '.join(RESIZED)} must both be whole numbers from 1, {found}")
    return height, width


def shown(value: Any) -> str:
    return f"{value!r:.80}"
