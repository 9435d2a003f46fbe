"""The records of an annotation file, found again by what results call them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from worldsmith.config.errors import UserError
from worldsmith.data.conversations.datasets.chat_dataset import record_name, unique
from worldsmith.files.places import join, read_bytes

WRAPPERS = ("annotations", "data", "samples", "items")
KINDS = ("video", "videos", "image", "images")
SHOWN = 5


class Annotations:
    """What a file of records holds: a list, one in an object, a single record, or one a line."""

    def __init__(self, place: str, media_root: str) -> None:
        """Raises UserError for a file that holds none."""
        self.place, self.media_root = place, media_root
        self.by_key: dict[str, Mapping[str, Any]] = {}
        self.by_name: dict[str, list[str]] = {}
        seen: dict[str, int] = {}
        for number, record in enumerate(read_records(place)):
            if not isinstance(record, Mapping):
                continue
            name = record_name(record) or f"{place.rpartition('/')[2]}[{number}]"
            key = unique(name, seen)
            self.by_key[key] = record
            self.by_name.setdefault(name, []).append(key)

    def key_of(self, row: Mapping[str, Any]) -> str | None:
        """The record that a row answers; None where there is none.

        One that shares its name with others is found by the row's own id, else by its question. Raises ValueError where
        that leaves several that show something else.
        """
        name = str(row.get("video_id") or row.get("id"))
        if row.get("id") in self.by_key:
            return str(row["id"])
        keys = self.by_name.get(name, [])
        asked = [key for key in keys if same_question(self.by_key[key], str(row.get("question", "")))]
        keys = asked or keys
        if len({json.dumps(self.media(key)) for key in keys}) > 1:
            raise ValueError(f"{len(keys)} records of {self.place} are called '{name}' and show different files")
        return keys[0] if keys else None

    def media(self, key: str) -> list[str]:
        """The files that a record shows, below the media root."""
        record = self.by_key[key]
        listed = [path for kind in KINDS for path in as_list(record.get(kind))]
        return [join(self.media_root, path) for path in listed if isinstance(path, str)]

    def with_places(self, key: str) -> dict[str, Any]:
        """A record that is complete wherever it is put: its files are named by their whole paths."""
        record = dict(self.by_key[key])
        for kind in KINDS:
            value = record.get(kind)
            if isinstance(value, str):
                record[kind] = join(self.media_root, value)
            elif isinstance(value, list):
                record[kind] = [join(self.media_root, path) if isinstance(path, str) else path for path in value]
        return record


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def same_question(record: Mapping[str, Any], question: str) -> bool:
    """Whether a user's turn of a record asks this, placeholders of media apart."""
    turns = record.get("conversations")
    texts = [str(turn.get("value", "")) for turn in as_list(turns) if isinstance(turn, Mapping)]
    return bare(question) in map(bare, texts)


def bare(text: str) -> str:
    for tag in ("<video>", "<image>"):
        text = text.replace(tag, " ")
    return " ".join(text.split())


def read_records(place: str) -> list[Any]:
    text = read_bytes(place)
    try:
        data = json.loads(text)
    except ValueError as error:
        try:
            data = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise UserError(f"{place} is neither JSON nor one JSON object a line: {error}") from None
    if isinstance(data, Mapping):
        wrapped = [data[name] for name in WRAPPERS if isinstance(data.get(name), list)]
        data = wrapped[0] if wrapped else [data]
    if not isinstance(data, list) or not any(isinstance(record, Mapping) for record in data):
        raise UserError(f"{place}: expected a list of records, or an object with one under {' or '.join(WRAPPERS)}")
    return data
