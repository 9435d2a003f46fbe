"""`ChatDataset`: what every kind of chat data set is, and the kinds that are files of records."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

from worldsmith.config import Configurable
from worldsmith.config.declare.ranges import NotNegative
from worldsmith.data.content_mark import content_marks
from worldsmith.data.conversations.conversation import Part, Turn, check_turns, say
from worldsmith.data.conversations.datasets.record_flags import LOOKED_AT, NO_FPS, flags_of, rates
from worldsmith.data.conversations.media_archives import is_archive, media_folders
from worldsmith.data.data_report import DataFlag
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.data.stream.quarantine import Rejection

MAX_FPS = 1000


class ChatDataset(Configurable, ABC):
    """Conversations by their index. Media are named, not opened."""

    class Config(Configurable.Config):
        usual_media: ClassVar[Literal["image", "video"]] = "image"
        """What its conversations are about, for plans without data."""

        system_prompt: str = ""
        """Opens every conversation that has no system turn of its own; "" = none."""

        def check_files(self) -> None:
            """Raises DataError when the data set cannot be read; opens no image or video."""
            self.build()

    name: str
    """What messages call it: a file or a folder."""
    num_records: int
    rejections: list[Rejection]
    limits = ""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def place(self, index: int) -> tuple[str, str, int | None]:
        """(key, path, line) of a conversation, to say which one it is."""

    @abstractmethod
    def turns(self, index: int) -> tuple[Turn, ...]:
        """Raises SampleError for a record that cannot be used."""

    @abstractmethod
    def listing(self) -> Iterable[tuple[str, Any]]: ...

    def fields(self, index: int) -> Mapping[str, Any]:
        """What the record of a conversation says, as it was read; nothing where that is not kept."""
        return {}

    def in_order(self) -> Iterator[int | Rejection]:
        """Every record of the data set: the index of its conversation, or why it has none."""
        yield from self.rejections
        yield from range(len(self))

    @property
    def num_samples(self) -> int:
        return len(self)

    def contents(self) -> Iterable[tuple[str, Any]]:
        """Key, and what makes two conversations the same to learn from."""
        return self.listing()

    def number(self, index: int) -> int:
        """Which record of its file a conversation is, from 0."""
        return index

    def require_rates(self) -> None:
        """Raises DataError when a record lacks the `video_fps` that is required."""
        return

    def flags(self) -> Iterable[DataFlag]:
        """What is to be said of the records before any medium is opened."""
        return ()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over all that `listing` gives."""
        digest = hashlib.sha256()
        for key, facts in self.listing():
            digest.update(json.dumps([key, facts]).encode())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of a file, as it was read."""

    key: str
    record: Any
    line: int | None
    number: int
    """Which record of the file it is, from 0."""
    files: tuple[str, ...]
    """Its images and videos, as far as they are files."""
    shows_video: bool

    @property
    def name(self) -> str:
        """What the record calls itself; "" = nothing."""
        return record_name(self.record)


class ChatFile(ChatDataset):
    """A data set that is a file of records, each known and checked before the run. The file is never written."""

    class Config(ChatDataset.Config):
        path: str = ""
        """The file of the records, or its folder."""
        media_root: str = ""
        """Folder to which media paths are relative, or its archive (.tar, .tar.gz, .zip); "" = that of the file."""
        skip: NotNegative = 0
        """Number of records at the beginning of the file to skip."""
        limit: NotNegative = 0
        """Maximum number of records after them; 0 = all."""
        video_fps: Literal["optional", "require", "probe"] = "optional"
        """A record's own `video_fps`: used where there is one, required of all, or not used (the video's rate is)."""

        def check_files(self) -> None:
            """Raises DataError also when a record lacks the `video_fps` that is required."""
            self.build().require_rates()

    config: Config
    file_name: str
    """What the file is called in a folder."""

    def __init__(self, config: Config) -> None:
        """Raises DataError when there is no file or it cannot be read; its bad records are in `rejections`."""
        self.config = config
        self.file = self.find()
        self.name = str(self.file)
        self.media_root = Path(config.media_root or (self.file if self.file.is_dir() else self.file.parent))
        self.num_records = 0
        self.rejections = []
        self.media_roots = [self.media_root]
        self._media_open = False
        self.entries: list[Entry] = []
        self._order: list[int | Rejection] = []
        seen: dict[str, int] = {}
        last = config.skip + config.limit if config.limit else None
        for number, line, record in islice(self.read_records(), config.skip, last):
            self.num_records += 1
            place = f"{self.file.name}:{line}" if line is not None else f"{self.file.name}[{number}]"
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

    def find(self) -> Path:
        """The file of the records. Raises DataError."""
        return find_file(self.config.path, self.file_name)

    def open_media(self) -> None:
        """Unpacks the media that lie in archives, when the first of them is needed. Raises DataError.

        Paths are then relative to the unpacked folder, or to the folder in it that has the files.
        """
        if self._media_open:
            return
        self._media_open = True
        named = list(islice((file for entry in self.entries for file in entry.files), LOOKED_AT))
        if not named or (not is_archive(self.media_root) and all(map(os.path.exists, named))):
            return
        inside = [os.path.relpath(file, self.media_root) for file in named]
        folders = [best_root(folder, inside) for folder in media_folders(self.media_root)]
        if folders:
            self.media_roots = folders if is_archive(self.media_root) else [self.media_root, *folders]
            self.entries = [replace(entry, files=files_of(self.parse(entry.record))) for entry in self.entries]

    def require_rates(self) -> None:
        for lacks in rates(self) if self.config.video_fps == "require" else ():
            raise DataError(
                f"{self.name}: {lacks}: {lacks.named}. `worldsmith dataset annotate-fps {self.file} --out NEW` writes "
                "a file that has it; video_fps = 'optional' or 'probe' reads each video's own rate"
            )

    @classmethod
    def is_at(cls, path: Path) -> bool:
        """Whether a folder or a file holds such a data set."""
        return (path / cls.file_name).is_file() if path.is_dir() else path.name == cls.file_name and path.is_file()

    @abstractmethod
    def read_records(self) -> Iterator[tuple[int, int | None, Any]]:
        """(index, line number if the file has lines, record or what is wrong with it), in order."""

    @abstractmethod
    def parse(self, record: Any) -> list[Turn]:
        """Raises SampleError for a record that is not in the format."""

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
        return flags_of(self)

    def contents(self) -> Iterable[tuple[str, Any]]:
        """Key, and what a conversation shows and says, whatever it and its files are called."""
        for index, entry in enumerate(self.entries):
            turns = self.turns(index)
            parts = [[p.kind, p.text, self._mark(p.source), p.fps, p.resized] for turn in turns for p in turn.parts]
            yield entry.key, [[turn.role, len(turn.parts)] for turn in turns] + parts

    def _mark(self, source: str | bytes) -> str:
        return source.hex() if isinstance(source, bytes) else self._marks.get(source) or os.path.realpath(source)

    def listing(self) -> Iterable[tuple[str, Any]]:
        """Records, and marks of what their images and videos hold; see `content_marks`."""
        self.open_media()
        return ((e.key, [e.record, *(self._marks.get(file) for file in e.files)]) for e in self.entries)

    @cached_property
    def _marks(self) -> dict[str, str]:
        self.open_media()
        return content_marks(file for entry in self.entries for file in entry.files)

    def medium(self, kind: Literal["image", "video"], path: Any, stated_fps: Any = None) -> Part:
        """An image or a video of a record. Raises SampleError: bad_record, remote_path, no_video_fps."""
        if not isinstance(path, str) or not path or "\0" in path:
            raise SampleError("bad_record", f"the path of the {kind} must be text without NUL, found {path!r}")
        if kind == "image" and path.startswith("data:"):
            return Part("image", source=path)
        path = path.removeprefix("file://")
        if "://" in path or path.startswith("data:"):
            raise SampleError("remote_path", f"'{path[:200]}' is no local {kind}; copy it beside the data set file")
        fps = self._fps(stated_fps) if kind == "video" else None
        first, *others = (os.path.join(root, path) for root in self.media_roots)
        if others and not os.path.exists(first):
            first = next(filter(os.path.exists, others), first)
        return Part(kind, source=first, fps=fps)

    def _fps(self, stated: Any) -> float | None:
        if self.config.video_fps == "probe":
            return None
        if stated is None:
            if self.config.video_fps == "require":
                raise SampleError(NO_FPS, "the record has no 'video_fps'; video_fps = 'optional' reads the video's")
            return None
        if isinstance(stated, bool) or not isinstance(stated, (int, float)) or not 0 < stated <= MAX_FPS:
            raise SampleError("bad_record", f"'video_fps' must be above 0, at most {MAX_FPS}, found {stated!r:.80}")
        return float(stated)


def best_root(folder: Path, names: Sequence[str]) -> Path:
    """The folder, or one directly in it, that has the most of the files, by their relative paths."""
    places = [folder, *sorted(place for place in folder.iterdir() if place.is_dir())]
    return max(places, key=lambda place: sum((place / name).exists() for name in names))


def find_file(path: str, name: str) -> Path:
    """The file at `path`, or `name` in the folder `path`. Raises DataError."""
    if not path:
        raise DataError(f"dataset.path is empty: expected a file, or a folder with {name}")
    given = Path(path)
    file = given / name if given.is_dir() else given
    if not file.is_file():
        raise DataError(f"{file} does not exist: expected a file, or a folder with {name}")
    return file


def files_of(turns: Iterable[Turn]) -> tuple[str, ...]:
    """The files that the turns show."""
    sources = [part.source for turn in turns for part in turn.parts if part.kind != "text"]
    return tuple(source for source in sources if isinstance(source, str) and not source.startswith("data:"))


def record_name(record: Any) -> str:
    """What a record calls itself; "" = nothing."""
    found = record.get("id") if isinstance(record, dict) else None
    return str(found) if isinstance(found, (str, int)) and not isinstance(found, bool) else ""


def unique(key: str, seen: dict[str, int]) -> str:
    """The key, with a number from its second use on: many sets ask several questions under one id."""
    seen[key] = seen.get(key, 0) + 1
    return key if seen[key] == 1 else unique(f"{key}#{seen[key]}", seen)


def with_system(turns: Iterable[Turn], prompt: str) -> list[Turn]:
    """The turns, opened by the system prompt when there is one and they have none."""
    turns = list(turns)
    return [say("system", prompt), *turns] if prompt and turns[0].role != "system" else turns
