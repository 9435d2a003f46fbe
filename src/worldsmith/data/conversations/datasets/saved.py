"""Chat datasets that the `datasets` library saved in a folder, or that it loads from a folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from worldsmith.data.conversations.conversation import Part, Turn
from worldsmith.data.conversations.datasets.chat_file import ChatFile
from worldsmith.data.conversations.datasets.llava import insert_media, reject_parts, tagged_turns
from worldsmith.data.conversations.datasets.messages import listed_media, message_turns, parse_messages
from worldsmith.data.json_records import parse_json
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.files.errors import require_libraries
from worldsmith.files.remote import file_exists, is_remote, join_address
from worldsmith.files.remote_folder import fetch_folder

MARKS = ("dataset_dict.json", "state.json")
"""Files by which a folder written by `save_to_disk` is recognized: with several splits, and with one split."""
FILES = (".parquet", ".arrow", ".jsonl", ".json", ".csv")
"""Suffixes of files from which the package `datasets` loads records."""
STORED = "stored"
"""Key of the placeholder that replaces an image or video in a record if the dataset contains its bytes."""
MEDIA = ("image", "images", "video", "videos")


class SavedDataset(ChatFile):
    """Chat dataset in a folder of the package `datasets`: a column of conversations, and columns of their media.

    A conversation is a list of messages, or a JSON string of one: `{"role", "content"}` with typed parts, as in
    `messages.jsonl`, or `{"from", "value"}` with tags, as in `annotations.json`. The columns image, images, video and
    videos contain paths or, for images, also bytes.
    """

    class Config(ChatFile.Config):
        """Settings of a dataset in a folder of the package `datasets`; `path` is that folder."""

        column: str = "conversations"
        """Name of the column with the conversations."""
        split: str = ""
        """Splits to read, such as train or train+validation; "" = the only split of the dataset."""
        subset: str = ""
        """Name of the subset (configuration), for folders not written by `save_to_disk`; "" = the only subset."""

    config: Config
    file_name = MARKS[0]

    @classmethod
    def is_at(cls, path: str) -> bool:
        return any(file_exists(join_address(path, name)) for name in MARKS)

    @property
    def folder(self) -> str:
        return self.file

    def find(self) -> str:
        folder = self.config.path.removeprefix("file://").rstrip("/")
        if not is_remote(folder) and not os.path.isdir(folder):
            raise DataError(
                f"the dataset folder '{self.config.path}' does not exist: expected a folder written by "
                "`save_to_disk` of the library 'datasets'. Set its path as dataset.path"
            )
        return folder

    def read_records(self) -> Iterator[tuple[int, int | None, Any]]:
        self.rows = load_rows(self.config)
        if self.config.column not in self.rows.column_names:
            raise DataError(
                f"{self.name} has no column '{self.config.column}': found {', '.join(self.rows.column_names)}. Set "
                "dataloader_train.dataset.column (in a spec file of "
                "Cosmos-RL: train.train_policy.conversation_column_name)"
            )
        for number, row in enumerate(self.rows):
            yield number, None, self._record(number, row)

    def _record(self, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns row `number` as a dict by column, without the bytes of media.

        The dict contains the conversation, lists of media (paths or placeholders), and columns of strings, numbers and
        booleans.
        """
        record: dict[str, Any] = {}
        for name, value in row.items():
            if name == self.config.column:
                record[name] = as_dicts(value)
            elif name in MEDIA and value is not None:
                items = value if isinstance(value, list) else [value]
                record[name] = [self._medium(number, name, index, item) for index, item in enumerate(items)]
            elif value is None or isinstance(value, (str, int, float, bool)):
                record[name] = value
        return record

    def _medium(self, number: int, column: str, index: int, item: Any) -> Any:
        """Returns the value of a record for an image or video: its path, or a placeholder if `item` has bytes.

        The placeholder is a dict with `stored` ([row, column, index]) and `sha256` (first 12 hex digits).

        Args:
            number: Index of the row.
            column: Name of the media column.
            index: Index of the image or video in the row's column.
            item: Value in the dataset: a path, or {"bytes", "path"}.
        """
        if not isinstance(item, dict):
            return item
        if not item.get("bytes"):
            return item.get("path")
        return {STORED: [number, column, index], "sha256": hashlib.sha256(item["bytes"]).hexdigest()[:12]}

    def parse(self, record: Any) -> list[Turn]:
        conversation = record[self.config.column]
        if isinstance(conversation, str):
            conversation = parse_json(conversation.encode(errors="surrogatepass"))
        messages = [message for message in conversation or () if isinstance(message, dict)]
        tagged = any("from" in message for message in messages)
        if not tagged and any(isinstance(message.get("content"), list) for message in messages):
            return message_turns({**record, "messages": conversation}, self.medium)
        images = [self.medium("image", path) for path in listed_media(record, "image")]
        videos = [self.medium("video", path, record.get("video_fps")) for path in listed_media(record, "video")]
        if tagged:
            return tagged_turns(conversation, images, videos)
        turns = parse_messages(conversation, reject_parts)
        return insert_media(turns, [*images, *videos]) if images or videos else turns

    def medium(self, kind: Literal["image", "video"], path: Any, stated_fps: Any = None) -> Part:
        if not isinstance(path, dict) or STORED not in path:
            return super().medium(kind, path, stated_fps)
        if kind == "video":
            raise SampleError(
                "bad_record", "the dataset contains a video as bytes: expected a path; write the video to a file"
            )
        number, column, index = path[STORED]
        found = self.rows[number][column]
        return Part("image", source=(found if isinstance(found, list) else [found])[index]["bytes"])


def as_dicts(value: Any) -> Any:
    """Converts a dict of lists, as `datasets` returns a list column, to a list of dicts; other values are unchanged."""
    if isinstance(value, dict) and value and all(isinstance(column, list) for column in value.values()):
        return [dict(zip(value, items)) for items in zip(*value.values())]
    return value


def load_rows(config: SavedDataset.Config) -> Any:
    """Returns the `datasets.Dataset` of the config, with undecoded media; DataError if it cannot be loaded."""
    require_libraries(config.path, "datasets", "datasets", error=DataError)
    import datasets

    try:
        folder = local_copy(config.path)
        if SavedDataset.is_at(str(folder)):
            found = datasets.load_from_disk(str(folder))
        else:
            if not any(file.suffix in FILES for file in folder.rglob("*")):
                raise DataError(
                    f"{folder} contains no dataset: expected a folder written by `save_to_disk`, or one of "
                    f"{', '.join(FILES)} files. Write the conversations as annotations.json"
                )
            found = datasets.load_dataset(str(folder), config.subset or None)
        if isinstance(found, datasets.DatasetDict):
            found = datasets.concatenate_datasets([found[name] for name in select_splits(config, list(found))])
        elif config.split and str(found.split) != config.split:
            raise DataError(f"{folder} has no splits, but dataset.split is '{config.split}'. Omit dataset.split")
        return without_decoding(found, datasets)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{config.path} cannot be loaded by the library 'datasets': {error}") from error


def local_copy(path: str) -> Path:
    """Returns `path`, or the local copy of the dataset in the folder of a store, which is downloaded if needed.

    Raises:
        FileNotFoundError: If the store has no dataset files there.
        RemoteError: If the storage cannot be reached or denies access.
        UserError: If the disk has too little free space.
    """
    data = [f"*{suffix}" for suffix in FILES]
    layouts = [(one, *data, "README.md") for one in data]  # README.md names the subsets
    copy = fetch_folder(path, layouts, field="dataset.path") if is_remote(path) else None
    return copy or Path(path.removeprefix("file://"))


def select_splits(config: SavedDataset.Config, available: list[str]) -> list[str]:
    """Returns the names of the splits to read, out of the existing splits `available`.

    Raises:
        DataError: If a split does not exist, or if the config names no split and there are several.
    """
    selected = config.split.split("+") if config.split else available
    missing = [name for name in selected if name not in available]
    if missing or (len(selected) > 1 and not config.split):
        what = f"no split '{missing[0]}'" if missing else "several splits, but dataset.split is empty"
        raise DataError(
            f"{config.path} has {what}: found {', '.join(available)}. Set dataset.split, such as {available[0]}"
        )
    return selected


def without_decoding(rows: Any, datasets: Any) -> Any:
    """Returns the dataset `rows` with image and video columns that yield paths or bytes instead of decoded media.

    Args:
        rows: A `datasets.Dataset`.
        datasets: The imported package `datasets`.
    """
    off = {name: getattr(datasets, name)(decode=False) for name in ("Image", "Video") if hasattr(datasets, name)}
    for name, feature in (rows.features or {}).items():
        inner = getattr(feature, "feature", feature[0] if isinstance(feature, list) else None)
        if type(feature).__name__ in off:
            rows = rows.cast_column(name, off[type(feature).__name__])
        elif type(inner).__name__ in off:
            rows = rows.cast_column(name, datasets.List(off[type(inner).__name__]))
    return rows
