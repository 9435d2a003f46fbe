"""LLaVA-style annotations: a list of records whose texts contain `<image>` and `<video>` tags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from worldsmith.data.conversations.conversation import Part, Turn
from worldsmith.data.conversations.datasets.chat_file import ChatFile
from worldsmith.data.conversations.datasets.messages import listed_media, parse_messages
from worldsmith.data.json_records import read_list
from worldsmith.data.stream.errors import DataError, SampleError

TAG = re.compile(r"\n?<(image|video)>\n?")
"""Placeholder of an image or a video, with surrounding line breaks."""
WRAPPERS = ("annotations", "data", "samples", "items")
"""Possible keys of the list of records if the file is a JSON object."""
TURNS = "conversations"
"""Key of a record's name."""


class LlavaDataset(ChatFile):
    """`annotations.json`: a list of `{"id", "image" | "images", "video" | "videos", "video_fps", "conversations"}`.

    An object that has this list as "annotations", "data", "samples" or "items" is accepted too, and so is a single
    record. All turns are used. Each `<image>` and `<video>` in a user's text is the position of the next image or
    video; media of a record without tags come before the first user's text. Records with different numbers of tags and
    media are rejected.
    """

    class Config(ChatFile.Config):
        pass

    file_name = "annotations.json"

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return super().is_at(path) or (path.is_file() and path.suffix == ".json" and has(path, TURNS))

    def read_records(self) -> Iterator[tuple[int, int | None, Any]]:
        for number, record in enumerate(read_list(self.file, wrappers=WRAPPERS, single=TURNS)):
            yield number, None, record

    def parse(self, record: Any) -> list[Turn]:
        if not isinstance(record, dict):
            raise SampleError("bad_record", f"expected an object, found {record!r:.80}")
        images = [self.medium("image", path) for path in listed_media(record, "image")]
        videos = [self.medium("video", path, record.get("video_fps")) for path in listed_media(record, "video")]
        return tagged_turns(record.get(TURNS), images, videos)


def has(file: Path, name: str) -> bool:
    """Returns whether the first record of a file has the key `name`."""
    try:
        records = read_list(file, wrappers=WRAPPERS, single=TURNS)
    except DataError:
        return False
    return bool(records) and isinstance(records[0], dict) and name in records[0]


def tagged_turns(conversations: Any, images: Sequence[Part], videos: Sequence[Part]) -> list[Turn]:
    """Converts messages `{"from", "value"}` to turns, with media at their tags.

    Args:
        conversations: Messages, as parsed from JSON.
        images: Images of the record, in order.
        videos: Videos of the record, in order.

    Raises:
        SampleError: If the messages are invalid or the numbers of tags and media differ.
    """
    turns = parse_messages(conversations, no_parts, role_key="from", text_key="value")
    asked = "".join(turn.text for turn in turns if turn.role == "user")
    waiting = {"image": list(images), "video": list(videos)}
    tags = {kind: len(re.findall(f"<{kind}>", asked)) for kind in waiting}
    if not any(tags.values()) and (media := [*images, *videos]):
        return show_first(turns, media)
    for kind, media in waiting.items():
        if tags[kind] != len(media):
            raise SampleError(
                "bad_record", f"the texts contain {tags[kind]} <{kind}>, but the record has {len(media)} {kind}s"
            )
    return [Turn("user", tuple(split_at_tags(turn.text, waiting))) if turn.role == "user" else turn for turn in turns]


def show_first(turns: list[Turn], media: Sequence[Part]) -> list[Turn]:
    """Returns the turns with the media before the first text of the user; SampleError if no turn is of the user."""
    first = next((number for number, turn in enumerate(turns) if turn.role == "user"), None)
    if first is None:
        raise SampleError("bad_record", "no user turn shows the record's images or videos")
    turns[first] = Turn("user", (*media, *turns[first].parts))
    return turns


def split_at_tags(text: str, waiting: dict[str, list[Part]]) -> Iterator[Part]:
    """Yields texts and media in order; the media are removed from `waiting`."""
    for number, piece in enumerate(TAG.split(text)):
        if number % 2:
            yield waiting[piece].pop(0)
        elif piece:
            yield Part("text", piece)


def no_parts(kind: Literal["image", "video"], named: Any) -> Part:
    raise SampleError("bad_record", f"'value' must be text; {kind}s are listed next to the conversation")
