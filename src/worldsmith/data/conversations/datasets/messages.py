"""OpenAI-style conversations: one JSON object a line, with `messages`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from worldsmith.data.conversations.conversation import Part, Turn
from worldsmith.data.conversations.datasets.chat_dataset import ChatFile
from worldsmith.data.conversations.datasets.llava import named
from worldsmith.data.conversations.datasets.typed_content import parse_messages
from worldsmith.data.json_records import first_record, parse_json, read_lines
from worldsmith.data.stream.errors import SampleError


class MessagesDataset(ChatFile):
    """A line is `{"id", "messages", "images", "videos", "video_fps"}` or a list of messages alone; text only will do.

    Content is text or a list of parts: `{"type": "text", "text": …}`, `{"type": "image", "image": path}`,
    `{"type": "image_url", "image_url": {"url": path or data URI}}`, `{"type": "video", "video": path}`. A part that
    names no file takes the next of the line's `images` or `videos`.
    """

    class Config(ChatFile.Config):
        pass

    file_name = "messages.jsonl"

    @classmethod
    def is_at(cls, path: Path) -> bool:
        first = first_record(path) if path.is_file() else None
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
    """Turns of `messages`; parts without a name take the next of the record's images or videos. Raises SampleError."""
    waiting = {kind: list(named(record, kind)) for kind in ("image", "video")}

    def medium(kind: Literal["image", "video"], path: Any) -> Part:
        if path is None:
            if not waiting[kind]:
                raise SampleError("bad_record", f"a part shows a {kind} that neither it nor '{kind}s' names")
            path = waiting[kind].pop(0)
        return open_medium(kind, path, record.get("video_fps"))

    turns = parse_messages(record.get("messages"), medium)
    left = {kind: len(paths) for kind, paths in waiting.items() if paths}
    if left:
        raise SampleError("bad_record", f"no part shows {left} of the line's images or videos")
    return turns
