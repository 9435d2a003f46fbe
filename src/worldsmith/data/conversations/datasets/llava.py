"""LLaVA-style annotations: a list of records whose texts contain `<image>` and `<video>` tags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from worldsmith.data.conversations.conversation import Part, Turn
from worldsmith.data.conversations.datasets.chat_file import ChatFile, file_at
from worldsmith.data.conversations.datasets.messages import listed_media, parse_messages
from worldsmith.data.json_records import read_list
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.files.remote import file_exists

TAG = re.compile(r"\n?<(image|video)>\n?")
"""Matches the placeholder of an image or a video, with surrounding line breaks."""
WRAPPERS = ("annotations", "data", "samples", "items")
"""Possible keys of the list of records if the file is a JSON object."""
TURNS = "conversations"
"""Key of the messages of a record."""


class LlavaDataset(ChatFile):
    """`annotations.json`: a list of `{"id", "image" | "images", "video" | "videos", "video_fps", "conversations"}`.

    An object that has this list as "annotations", "data", "samples" or "items" is accepted too, and so is a single
    record. Each `<image>` and `<video>` tag in the text of the user is replaced by the next image or video of the
    record; without tags, the media come before the first text of the user. Records whose numbers of tags and media
    differ are rejected.
    """

    class Config(ChatFile.Config):
        pass

    file_name = "annotations.json"

    @classmethod
    def is_at(cls, path: str) -> bool:
        file = file_at(path, cls.file_name)
        return super().is_at(path) or (file.endswith(".json") and file_exists(file) and has(file, TURNS))

    def read_records(self) -> Iterator[tuple[int, int | None, Any]]:
        for number, record in enumerate(read_list(self.file, wrappers=WRAPPERS, single=TURNS)):
            yield number, None, record

    def parse(self, record: Any) -> list[Turn]:
        if not isinstance(record, dict):
            raise SampleError("bad_record", f"expected an object, found {record!r:.80}")
        images = [self.medium("image", path) for path in listed_media(record, "image")]
        videos = [self.medium("video", path, record.get("video_fps")) for path in listed_media(record, "video")]
        return tagged_turns(record.get(TURNS), images, videos)


def has(file: str, name: str) -> bool:
    """Returns whether the first record of a JSON file has the key `name`; False if the file cannot be read."""
    try:
        records = read_list(file, wrappers=WRAPPERS, single=TURNS)
    except DataError:
        return False
    return bool(records) and isinstance(records[0], dict) and name in records[0]


def tagged_turns(conversations: Any, images: Sequence[Part], videos: Sequence[Part]) -> list[Turn]:
    """Converts messages `{"from", "value"}` to turns, in which images and videos replace their tags.

    Args:
        conversations: Messages, as parsed from JSON.
        images: Images of the record, in the order of the `<image>` tags.
        videos: Videos of the record, in the order of the `<video>` tags.

    Raises:
        SampleError: If the messages are invalid or the numbers of tags and media differ.
    """
    turns = parse_messages(conversations, reject_parts, role_key="from", text_key="value")
    user_text = "".join(turn.text for turn in turns if turn.role == "user")
    remaining = {"image": list(images), "video": list(videos)}
    tags = {kind: len(re.findall(f"<{kind}>", user_text)) for kind in remaining}
    if not any(tags.values()) and (media := [*images, *videos]):
        return insert_media(turns, media)
    for kind, media in remaining.items():
        if tags[kind] != len(media):
            raise SampleError(
                "bad_record", f"the user's texts contain {tags[kind]} <{kind}>, but the record has {len(media)} {kind}s"
            )
    return [Turn("user", tuple(split_at_tags(turn.text, remaining))) if turn.role == "user" else turn for turn in turns]


def insert_media(turns: list[Turn], media: Sequence[Part]) -> list[Turn]:
    """Inserts media before the first text of the user in `turns`, in place, and returns the list.

    Raises:
        SampleError: bad_record if no turn is of the user.
    """
    first = next((number for number, turn in enumerate(turns) if turn.role == "user"), None)
    if first is None:
        raise SampleError("bad_record", "the record has images or videos, but no user turn that could contain them")
    turns[first] = Turn("user", (*media, *turns[first].parts))
    return turns


def split_at_tags(text: str, remaining: dict[str, list[Part]]) -> Iterator[Part]:
    """Yields the parts of a text, in which each tag is replaced by the next medium of its type in `remaining`.

    Args:
        text: Text with `<image>` and `<video>` tags.
        remaining: Media that are not used yet, under "image" and "video"; the yielded ones are removed.
    """
    for number, piece in enumerate(TAG.split(text)):
        if number % 2:
            yield remaining[piece].pop(0)
        elif piece:
            yield Part("text", piece)


def reject_parts(kind: Literal["image", "video"], named: Any) -> Part:
    raise SampleError("bad_record", f"'value' must be a string; list {kind}s under '{kind}s' of the record")
