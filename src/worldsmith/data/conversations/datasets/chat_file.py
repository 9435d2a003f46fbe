"""`ChatFile`: chat datasets that are files of records, and warnings about the records before media are opened."""

from __future__ import annotations

import os
import posixpath
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, Self

from worldsmith.config.declare.ranges import NotNegative
from worldsmith.data.content_fingerprint import file_fingerprints
from worldsmith.data.conversations.conversation import Part, Turn, check_turns
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset, record_name, unique, with_system
from worldsmith.data.conversations.media_archives import is_archive, media_folders
from worldsmith.data.data_report import DataFlag, flag_records
from worldsmith.data.shards.addresses import absolute_path
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.files.remote import RemoteError, file_exists, is_remote, join_address, remote_facts

MAX_FPS = 1000
LOOKED_AT = 100
"""Max number of media files of a dataset whose existence is checked: the first ones."""
NO_FPS = "no_video_fps"
FOLLOWS = {
    "optional": "have no video_fps: the frame rate of each file is used",
    "require": "have no video_fps, but video_fps = 'require' is set",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """Valid record of a chat dataset file, with its key and media files."""

    key: str
    """Unique key of the conversation."""
    record: Any
    """Unchanged content of the record."""
    line: int | None
    number: int
    """0-based index of the record in the file."""
    files: tuple[str, ...]
    """Paths of the images and videos."""
    shows_video: bool
    """Whether the conversation contains a video."""

    @property
    def name(self) -> str:
        """The `id` of the record as a string; "" if the record has no valid `id`."""
        return record_name(self.record)


class ChatFile(ChatDataset):
    """Base class of chat datasets that are a file of records. All records are checked before a run."""

    class Config(ChatDataset.Config):
        path: str = ""
        """Path or address (s3://bucket/folder) of the dataset file, or of its folder."""
        media_root: str = ""
        """Folder that media paths are relative to, or an archive of it (.tar, .tar.gz, .zip), as a path or address;
        "" = the folder of the dataset file."""
        skip: NotNegative = 0
        """Number of records at the beginning of the file to skip."""
        limit: NotNegative = 0
        """Max number of records that are used, after the skipped ones; 0 = all."""
        video_fps: Literal["optional", "require", "probe"] = "optional"
        """Frame rate of videos. optional: `video_fps` of the record, else that of the file; require: `video_fps` of the
        record, which must exist; probe: always that of the file."""

        def check_files(self) -> None:
            """Raises DataError if the dataset cannot be read, or if a record lacks a required `video_fps`."""
            self.build().require_rates()

        def with_optional_rates(self) -> Self:
            return replace(self, video_fps="optional") if self.video_fps == "require" else self

    config: Config
    file_name: str
    """Name of the dataset file in a folder."""

    def __init__(self, config: Config) -> None:
        """Reads all records; raises DataError if the file cannot be read. Invalid records are in `rejections`."""
        self.config = config
        self.file = self.name = self.find()
        self.media_root = config.media_root.removeprefix("file://").rstrip("/") or self.folder
        self.num_records = 0
        self.rejections = []
        self.media_roots = [self.media_root]
        self._media_open = False
        self.entries: list[Entry] = []
        self._order: list[int | Rejection] = []
        seen: dict[str, int] = {}
        file_name = os.path.basename(self.file)
        last = config.skip + config.limit if config.limit else None
        for number, line, record in islice(self.read_records(), config.skip, last):
            self.num_records += 1
            place = f"{file_name}:{line}" if line is not None else f"{file_name}[{number}]"
            key = unique(record_name(record) or place, seen)
            try:
                if isinstance(record, SampleError):
                    raise record
                turns = check_turns(self.parse(record))
            except SampleError as error:
                where = "" if line is not None else f"record {number}: "
                self.rejections.append(Rejection(key, error.reason, f"{where}{error.detail}", self.name, line, number))
                self._order.append(self.rejections[-1])
            else:
                self._order.append(len(self.entries))
                shows = any(part.kind == "video" for turn in turns for part in turn.parts)
                self.entries.append(Entry(key, record, line, number, files_of(turns), shows))

    def find(self) -> str:
        """Returns the path or address of the dataset file (or folder); raises DataError if it does not exist."""
        return find_file(self.config.path, self.file_name)

    @property
    def folder(self) -> str:
        """Path or address of the folder of the dataset."""
        return os.path.dirname(self.file) or "."

    def open_media(self) -> None:
        """Unpacks the media archives of the dataset at the first call, and updates the paths in `entries`.

        Media paths are then relative to the unpacked folder, or to the subfolder of it that contains the files.

        Raises:
            DataError: If an archive cannot be unpacked or its storage cannot be read.
            UserError: If the disk has too little free space for an archive of a store.
        """
        if self._media_open:
            return
        self._media_open = True
        named = list(islice((file for entry in self.entries for file in entry.files), LOOKED_AT))
        is_far = is_remote(self.media_root)
        named = [file for file in named if is_remote(file) == is_far]
        looked_at = named[:1] if is_far else named  # in a store, each look takes a request
        try:
            is_plain = not named or (not is_archive(self.media_root) and all(map(file_exists, looked_at)))
            folders = [] if is_plain else media_folders(self.media_root)
        except RemoteError as error:
            raise DataError(str(error)) from None
        inside = [os.path.relpath(file, self.media_root) for file in named]
        if folders:
            roots = [str(choose_media_root(folder, inside)) for folder in folders]
            self.media_roots = roots if is_archive(self.media_root) else [self.media_root, *roots]
            self.entries = [replace(entry, files=files_of(self.parse(entry.record))) for entry in self.entries]

    def require_rates(self) -> None:
        for lacks in flag_missing_rates(self) if self.config.video_fps == "require" else ():
            raise DataError(
                f"{self.name}: {lacks}: {lacks.named}. `worldsmith dataset annotate-fps {self.file} --out NEW` "
                "writes a copy with video_fps; video_fps = 'optional' or 'probe' uses the frame rate of each video file"
            )

    @classmethod
    def is_at(cls, path: str) -> bool:
        """Returns whether `path` is a dataset of this type: its file, or a folder that contains the file.

        Raises:
            RemoteError: If its storage cannot be reached or denies access.
        """
        return os.path.basename(file := file_at(path, cls.file_name)) == cls.file_name and file_exists(file)

    @abstractmethod
    def read_records(self) -> Iterator[tuple[int, int | None, Any]]:
        """Yields (index, line number or None, record) for each record; a SampleError replaces an invalid record."""

    @abstractmethod
    def parse(self, record: Any) -> list[Turn]:
        """Converts a record to turns; raises SampleError if it is not in the format of this dataset type."""

    def __len__(self) -> int:
        return len(self.entries)

    def turns(self, index: int) -> tuple[Turn, ...]:
        self.open_media()
        turns = self.parse(self.entries[index].record)
        return tuple(with_system(turns, self.config.system_prompt))

    def place(self, index: int) -> tuple[str, str, int | None]:
        entry = self.entries[index]
        return entry.key, self.name, entry.line

    def fields(self, index: int) -> Mapping[str, Any]:
        record = self.entries[index].record
        return record if isinstance(record, dict) else {}

    def in_order(self) -> Iterator[int | Rejection]:
        return iter(self._order)

    def number(self, index: int) -> int:
        return self.entries[index].number

    def flags(self) -> Iterable[DataFlag]:
        self.open_media()
        return flag_file(self)

    def contents(self) -> Iterable[tuple[str, Any]]:
        """Yields (key, content) of each conversation, to find duplicates: conversations whose content is equal.

        The content does not contain IDs. A media file is represented by its content fingerprint; after the first
        1000 files and for unreadable files, by its path.
        """
        for index, entry in enumerate(self.entries):
            turns = self.turns(index)
            parts = [[p.kind, p.text, self._mark(p.source), p.fps, p.resized] for turn in turns for p in turn.parts]
            yield entry.key, [[turn.role, len(turn.parts)] for turn in turns] + parts

    def traces(self) -> Iterable[str]:
        """Yields one string per conversation; conversations about the same media files have the same string.

        For a conversation without media, the string contains the text of the turns.
        """
        return (trace_of(self.turns(index)) for index in range(len(self)))

    def _mark(self, source: str | bytes) -> str:
        return source.hex() if isinstance(source, bytes) else self._marks.get(source) or absolute_path(source)

    def listing(self) -> Iterable[tuple[str, Any]]:
        """Yields (key, [record, content fingerprint of each media file]) of each conversation.

        A fingerprint is "" for an unreadable file, and None for files after the first 1000 of the dataset.
        """
        self.open_media()
        return ((e.key, [e.record, *(self._marks.get(file) for file in e.files)]) for e in self.entries)

    @cached_property
    def _marks(self) -> dict[str, str]:
        self.open_media()
        return file_fingerprints(file for entry in self.entries for file in entry.files)

    def medium(self, kind: Literal["image", "video"], path: Any, stated_fps: Any = None) -> Part:
        """Returns an image or video of a record as the part of a turn, with its path in the media folder.

        Args:
            kind: "image" or "video".
            path: Path or address as stated in the record, or a data URI for an image.
            stated_fps: `video_fps` of the record; None if the record has none.

        Raises:
            SampleError: bad_record for an invalid path or frame rate; no_video_fps if the config requires a frame rate
                and `stated_fps` is None.
        """
        if not isinstance(path, str) or not path or "\0" in path:
            raise SampleError(
                "bad_record", f"the path of the {kind} must be a string without NUL characters, found {path!r}"
            )
        if kind == "image" and path.startswith("data:"):
            return Part("image", source=path)
        if path.startswith("data:"):
            raise SampleError("bad_record", f"'{path[:80]}' contains a {kind}: expected the path of a file")
        fps = self._fps(stated_fps) if kind == "video" else None
        first, *others = (join_address(root, path) for root in self.media_roots)
        if others and not os.path.exists(first):
            first = next(filter(os.path.exists, others), first)
        return Part(kind, source=first, fps=fps)

    def _fps(self, stated: Any) -> float | None:
        if self.config.video_fps == "probe":
            return None
        if stated is None:
            if self.config.video_fps == "require":
                raise SampleError(
                    NO_FPS, "the record has no 'video_fps'; video_fps = 'optional' uses the frame rate of the file"
                )
            return None
        if isinstance(stated, bool) or not isinstance(stated, (int, float)) or not 0 < stated <= MAX_FPS:
            raise SampleError(
                "bad_record", f"'video_fps' must be a number above 0, at most {MAX_FPS}, found {stated!r:.80}"
            )
        return float(stated)


def trace_of(turns: Sequence[Turn]) -> str:
    sources = [part.source for turn in turns for part in turn.parts if part.kind != "text"]
    return repr(sorted(absolute_path(str(source)) for source in sources) or turns)


def choose_media_root(folder: Path, names: Sequence[str]) -> Path:
    """Returns `folder` or its direct subfolder that contains most of the files with the relative paths `names`."""
    candidates = [folder, *sorted(inner for inner in folder.iterdir() if inner.is_dir())]
    return max(candidates, key=lambda root: sum((root / name).exists() for name in names))


def find_file(path: str, name: str) -> str:
    """Returns the file at `path`, or `name` in the folder `path`; raises DataError if it does not exist."""
    if not path:
        raise DataError(f"dataset.path is empty: expected a file, or a folder with {name}")
    file = file_at(path, name)
    remote_facts.cache_clear()  # files may have been replaced since this process has read another dataset
    try:
        if file_exists(file):
            return file
    except RemoteError as error:
        raise DataError(str(error)) from None
    raise DataError(f"{file} does not exist: expected a file, or a folder with {name}")


def file_at(path: str, name: str) -> str:
    """Returns `path`, or that of the file `name` in it if `path` is a folder; an address without ".json" is one."""
    path = path if is_remote(path) else str(Path(path.removeprefix("file://")))
    is_folder = ".json" not in posixpath.basename(path) if is_remote(path) else os.path.isdir(path)
    return join_address(path, name) if is_folder else path


def files_of(turns: Iterable[Turn]) -> tuple[str, ...]:
    """Returns the paths of the images and videos in turns, without data URIs and images as bytes."""
    sources = [part.source for turn in turns for part in turn.parts if part.kind != "text"]
    return tuple(source for source in sources if isinstance(source, str) and not source.startswith("data:"))


def flag_file(dataset: ChatFile) -> Iterator[DataFlag]:
    """Yields the warnings about a dataset: missing frame rates, repeated or missing IDs, media in another folder."""
    yield from flag_missing_rates(dataset)
    names = Counter(entry.name for entry in dataset.entries if entry.name)
    repeated = [{"index": entry.number, "key": entry.name} for entry in dataset.entries if names[entry.name] > 1]
    said = "records have an id that occurs more than once: their keys are id, id#2, id#3, …"
    yield from flag_records("ids_repeated", repeated, dataset.num_records, said)
    unnamed = [{"index": entry.number, "key": entry.key} for entry in dataset.entries if not entry.name]
    said = "records have no id: their keys are their positions in the file"
    yield from flag_records("ids_missing", unnamed, dataset.num_records, said)
    yield from flag_media_elsewhere(dataset)


def flag_missing_rates(dataset: ChatFile) -> Iterator[DataFlag]:
    """Yields a warning if records with a video have no `video_fps`, unless the config's `video_fps` is "probe"."""
    policy = dataset.config.video_fps
    if policy == "probe":
        return
    shown = [entry for entry in dataset.entries if entry.shows_video]
    missing: list[dict[str, Any]] = [
        {"index": entry.number, "key": entry.key} for entry in shown if stated_rate(entry.record) is None
    ]
    refused = [{"index": r.index, "key": r.key} for r in dataset.rejections if r.reason == NO_FPS]
    missing = sorted([*missing, *refused], key=lambda one: one["index"])
    yield from flag_records(NO_FPS, missing, len(shown) + len(refused), f"records with a video {FOLLOWS[policy]}")


def stated_rate(record: Any) -> Any:
    return record.get("video_fps") if isinstance(record, dict) else None


def flag_media_elsewhere(dataset: ChatFile) -> Iterator[DataFlag]:
    """Yields a warning if missing media are found in a subfolder, or in the parent, of the media folder."""
    files = list(islice(dict.fromkeys(chain.from_iterable(entry.files for entry in dataset.entries)), LOOKED_AT))
    missing = [file for file in files if not is_remote(file) and not os.path.exists(file)]
    root = find_media_root(Path(dataset.media_root), missing)
    if root is not None:
        of = {file: entry for entry in reversed(dataset.entries) for file in entry.files}
        found = [{"index": of[file].number, "key": of[file].key, "detail": file} for file in missing]
        said = f"images and videos were not found in the media folder, but in {root}: set media_root = '{root}'"
        yield from flag_records("media_elsewhere", found, len(files), said)


def find_media_root(root: Path, missing: Sequence[str]) -> Path | None:
    """Returns the subfolder or parent folder of `root` that contains all missing files; None if no folder does.

    Only direct subfolders are searched.

    Args:
        root: Folder that the media paths are relative to.
        missing: Paths of files that do not exist.
    """
    inside = [os.path.relpath(file, root) for file in missing if Path(file).is_relative_to(root)]
    if not inside or len(inside) < len(missing):
        return None
    folders = sorted(place for place in root.iterdir() if place.is_dir()) if root.is_dir() else []
    places = [*folders, root.absolute().parent]
    return next((place for place in places if all((place / name).exists() for name in inside)), None)
