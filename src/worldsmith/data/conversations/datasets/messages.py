"""Conversations as messages with typed content: `MessagesDataset`, and the parser that other formats share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from worldsmith.data.conversations.conversation import Part, Turn, role_of
from worldsmith.data.conversations.datasets.chat_file import ChatFile
from worldsmith.data.json_records import first_record, parse_json, read_lines
from worldsmith.data.stream.errors import SampleError
from worldsmith.files.remote import file_exists

TEXTS = ("text", "input_text", "output_text")
MEDIA: dict[str, Literal["image", "video"]] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "video": "video",
    "video_url": "video",
}
RESIZED = ("resized_height", "resized_width")
"""Keys of a part that request a size in pixels for an image, or for each frame of a video."""
UNREAD = ("weight", "tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
"""Unsupported keys of a message that would change the trained text; messages with one of them are rejected."""
Medium = Callable[[Literal["image", "video"], Any], Part]
"""Builds the part of an image or video from its type and the value (such as a path) that the message has for it."""


class MessagesDataset(ChatFile):
    """`messages.jsonl`: each line is `{"id", "messages", "images", "videos", "video_fps"}` or only a list of messages.

    The content of a message is a string or a list of parts: `{"type": "text", "text": …}`, `{"type": "image",
    "image": path}`, `{"type": "image_url", "image_url": {"url": path or data URI}}`, `{"type": "video", "video":
    path}`. An image or video part without a path uses the next path in `images` or `videos`. Conversations without
    media are valid.
    """

    class Config(ChatFile.Config):
        pass

    file_name = "messages.jsonl"

    @classmethod
    def is_at(cls, path: str) -> bool:
        first = first_record(path) if file_exists(path) else None
        return super().is_at(path) or isinstance(first, list) or (isinstance(first, dict) and "messages" in first)

    def read_records(self) -> Iterator[tuple[int, int | None, Any]]:
        for number, (line, text) in enumerate(read_lines(self.file)):
            try:
                yield number, line, parse_json(text)
            except SampleError as error:
                yield number, line, error

    def parse(self, record: Any) -> list[Turn]:
        if isinstance(record, list):
            record = {"messages": record}
        if not isinstance(record, dict):
            raise SampleError("bad_record", f"expected an object or a list of messages, found {record!r:.80}")
        return message_turns(record, self.medium)


def message_turns(record: dict[str, Any], open_medium: Callable[..., Part]) -> list[Turn]:
    """Converts the `messages` of a record to turns; a part without a path uses the record's next image or video.

    Args:
        record: Record with `messages` and optionally `images`, `videos` and `video_fps`.
        open_medium: Builds a `Part` from the media type ("image" or "video"), its path, and `video_fps` or None.

    Raises:
        SampleError: If the messages are invalid, or if images or videos of the record are missing or unused.
    """
    remaining = {kind: list(listed_media(record, kind)) for kind in ("image", "video")}

    def medium(kind: Literal["image", "video"], path: Any) -> Part:
        if path is None:
            if not remaining[kind]:
                raise SampleError("bad_record", f"the {kind} part has no path, and no path is left in '{kind}s'")
            path = remaining[kind].pop(0)
        return open_medium(kind, path, record.get("video_fps"))

    turns = parse_messages(record.get("messages"), medium)
    left = {kind: len(paths) for kind, paths in remaining.items() if paths}
    if left:
        raise SampleError("bad_record", f"images or videos of the record that no part uses: {left}")
    return turns


def listed_media(record: dict[str, Any], kind: str) -> list[Any]:
    """Returns the list of images (`kind` = "image") or videos ("video") of a record; its key may be singular or plural.

    Raises:
        SampleError: If the record has both keys.
    """
    found = [record[name] for name in (kind, f"{kind}s") if record.get(name) is not None]
    if len(found) > 1:
        raise SampleError("bad_record", f"the record has both '{kind}' and '{kind}s'")
    paths = found[0] if found else []
    return paths if isinstance(paths, list) else [paths]


def parse_messages(messages: Any, medium: Medium, *, role_key: str = "role", text_key: str = "content") -> list[Turn]:
    """Converts a list of messages to turns.

    Args:
        messages: Messages, as parsed from JSON.
        medium: Builds the `Part` of an image or video from its type and the value that the message has for it.
        role_key: Key of the role in a message.
        text_key: Key of the content in a message.

    Raises:
        SampleError: If `messages` is not a list of messages, or a message or one of its parts is invalid.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise SampleError("bad_record", f"expected a list of messages, found {abbreviate(messages)}")
    turns = []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            raise SampleError("bad_record", f"message {number} must be an object, found {abbreviate(message)}")
        unread = [name for name in UNREAD if message.get(name) is not None]
        if unread:
            raise SampleError("bad_record", f"message {number} has the key '{unread[0]}', which is not supported")
        parts = parse_content(message.get(text_key), medium, f"'{text_key}' of message {number}")
        turns.append(Turn(role_of(message.get(role_key)), parts))
    return turns


def parse_content(content: Any, medium: Medium, where: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Part("text", content),)
    if not isinstance(content, list):
        raise SampleError("bad_record", f"{where} must be a string or a list of parts, found {abbreviate(content)}")
    return tuple(parse_part(part, medium, where) for part in content)


def parse_part(part: Any, medium: Medium, where: str) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in (*TEXTS, *MEDIA):
        raise SampleError("bad_record", f"{where} has a part of type {kind!r}: expected {', '.join([*TEXTS, *MEDIA])}")
    given = {name for name, value in part.items() if value is not None}
    further = sorted(given - {"type", "text", "detail", "image", "video", "image_url", "video_url", *RESIZED})
    if further:
        raise SampleError(
            "bad_record",
            f"{where}: the key '{further[0]}' of a part is not supported; the config sets size limits and frame rates",
        )
    if kind in TEXTS:
        if not isinstance(part.get("text"), str):
            raise SampleError("bad_record", f"{where}: 'text' must be a string, found {abbreviate(part.get('text'))}")
        return Part("text", part["text"])
    named = part.get("image_url" if kind == "input_image" else kind)
    if isinstance(named, dict):
        named = named.get("url")
    return replace(medium(MEDIA[kind], named), resized=parse_size(part, where))


def parse_size(part: dict[str, Any], where: str) -> tuple[int, int] | None:
    """Returns (`resized_height`, `resized_width`), the size in pixels that a part requests; None without these keys.

    Args:
        part: Part of a message.
        where: Location of the part for error messages.

    Raises:
        SampleError: bad_record if a value is missing or is not a positive integer.
    """
    height, width = (part.get(name) for name in RESIZED)
    if height is None and width is None:
        return None
    if type(height) is not int or type(width) is not int or min(height, width) < 1:
        found = f"found {abbreviate(height)} and {abbreviate(width)}"
        raise SampleError(
            "bad_record", f"{where}: {' and '.join(RESIZED)} must both be integers of at least 1, {found}"
        )
    return height, width


def abbreviate(value: Any) -> str:
    return f"{value!r:.80}"
