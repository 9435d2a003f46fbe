"""The layout of a prepared VideoPhy-2: a manifest, and one media file and one conversation file per record."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal

from worldsmith.data.content_fingerprint import READERS
from worldsmith.data.conversations.conversation import Part, Turn
from worldsmith.data.conversations.datasets.chat_file import ChatFile
from worldsmith.data.conversations.datasets.messages import parse_messages
from worldsmith.data.json_records import parse_json, read_list
from worldsmith.data.stream.errors import SampleError, read_error
from worldsmith.files.lines import read_bytes
from worldsmith.files.remote import is_remote, join_address

NAMES = {"id": ("id", "name"), "media": ("media", "video"), "conversation": ("conversation", "text")}
"""Keys of a record, and their possible names."""
BLOCK = 1000
"""Number of conversation files that are requested at a time."""


class ManifestDataset(ChatFile):
    """`meta.json`: a list of `{"id", "media", "conversation"}` with the paths of a media file and a conversation file.

    Paths are relative to the folder of `meta.json`; those of media files to `media_root`, if it is set. A conversation
    file contains messages with typed content. Its messages refer to the media file of the record by a name such as
    "video_0".
    """

    class Config(ChatFile.Config):
        usual_media: ClassVar[Literal["image", "video"]] = "video"

    file_name = "meta.json"

    def read_records(self) -> Iterator[tuple[int, int | None, Any]]:
        records = read_list(self.file)
        with ThreadPoolExecutor(READERS) as pool:  # of a store, each conversation file takes a request
            for start in range(0, len(records), BLOCK):
                for number, found in enumerate(pool.map(self._read, records[start : start + BLOCK]), start):
                    yield number, None, found

    def _read(self, record: Any) -> dict[str, Any] | SampleError:
        try:
            return self._complete(record)
        except SampleError as error:
            return error

    def _complete(self, record: Any) -> dict[str, Any]:
        """Returns a record with the keys id, media, video_fps and conversation (content of the conversation file).

        Raises:
            SampleError: If the record is invalid or the conversation file cannot be read.
        """
        if isinstance(record, SampleError):
            raise record
        if not isinstance(record, dict):
            raise SampleError("bad_record", f"expected an object, found {record!r:.80}")
        found = {
            name: next((record[other] for other in others if record.get(other) is not None), None)
            for name, others in NAMES.items()
        }
        missing = [f"'{' or '.join(NAMES[name])}'" for name, value in found.items() if not isinstance(value, str)]
        if missing:
            raise SampleError("bad_record", f"expected strings under {', '.join(missing)}")
        file = join_address(self.folder, str(found["conversation"]))
        try:
            if not is_remote(file) and not stat.S_ISREG(os.stat(file).st_mode):  # a pipe would be waited for
                raise FileNotFoundError("it is not a file")
            text = read_bytes(file)
        except (OSError, ValueError) as error:
            reason = read_error(error).reason if isinstance(error, OSError) else "missing_file"
            raise SampleError(reason, f"the conversation {file} cannot be read: {error}") from None
        conversation = parse_json(text)
        if isinstance(conversation, dict):
            conversation = conversation.get("conversations")
        return {**found, "video_fps": record.get("video_fps"), "conversation": conversation}

    def parse(self, record: Any) -> list[Turn]:
        names: set[str] = set()

        def medium(kind: Literal["image", "video"], name: Any) -> Part:
            names.add(str(name))
            return self.medium(kind, record["media"], record["video_fps"])

        turns = parse_messages(record["conversation"], medium)
        if len(names) != 1:
            raise SampleError(
                "bad_record",
                f"the conversation refers to {len(names)} media files ({', '.join(names)}): expected exactly one",
            )
        return turns
