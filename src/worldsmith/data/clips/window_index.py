"""Windows of clips: `Window`, and `WindowIndex`, which keeps those of a large dataset on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.data.clips.clip_records import repeated_uuid
from worldsmith.data.shards.addresses import absolute_path
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.sample_maker import short_hash
from worldsmith.files.atomic import build_once
from worldsmith.files.errors import UserError
from worldsmith.files.json_file import read_json_object
from worldsmith.files.remote import cache_folder

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MANY = 200_000
"""Number of windows above which a dataset has an index on disk."""
COLUMNS = ("uuid", "content", "path", "offset", "count")
"""Temporary files of an index that is being written, each with a uint64 per clip: hashes of uuid, content and path,
byte offset of the clip's line in `WINDOWS`, and number of windows."""
FACTS, WINDOWS = "index.json", "windows.jsonl"
PIECE = 1 << 12
LOG_INTERVAL = 1_000_000
DAMAGED = (OSError, EOFError, ValueError, KeyError, TypeError, UserError)


@dataclass(frozen=True, slots=True)
class Window:
    """Window of a clip: a range of frames that is used as one training sample, with its captions."""

    key: str
    """`<uuid>_w<window index>`."""
    path: str
    """Path of the clip, or address of its tar member or of the remote file."""
    relative_path: str
    """Path of the clip in the dataset; independent of the location of the dataset."""
    start_frame: int
    end_frame: int
    """Last frame, inclusive; -1 = the last one of the clip."""
    temporal_interval: int
    """Frame stride, in frames of the clip, with which a sample covers the complete window."""
    captions: dict[str, Any]
    """Captions by key: plain text, or a JSON object."""
    line: int | None
    """Line number in the dataset file; None in a shard."""
    mark: str = ""
    """Content hash of the clip; "": computed from the file."""


class WindowIndex(Sequence[Window]):
    """Windows of a large dataset in dataset order, in a folder on disk from which single windows are read.

    `windows.jsonl` has a line per clip: [[path, line, uuid], [relative path, mark, windows]]. `offset.npy` (int64
    [clips]) and `starts.npy` (int32 or int64 [clips + 1]) contain the byte offset of the line and the index of the
    first window of each clip, in dataset order; `path.npy` (uint64 [clips]) contains sorted hashes of the paths.
    """

    def __init__(self, folder: Path) -> None:
        """Opens the index in `folder`; raises one of `DAMAGED` if a file is missing or damaged."""
        import numpy as np

        facts = read_json_object(folder / FACTS)
        self.folder = folder
        self.num_records: int = facts["num_records"]
        self.content: str = facts["content"]
        """Hash of the windows and their order, without the files of clips; independent of the dataset's location."""
        self.rejections = [Rejection(*values) for values in facts["rejections"]]
        self.offsets, self.starts = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("offset", "starts"))
        self.find_paths(())
        self._file = open(folder / WINDOWS, "rb", buffering=0)  # noqa: SIM115  (open as long as the index)
        if (size := os.fstat(self._file.fileno()).st_size) != facts["size"]:
            raise ValueError(f"{folder / WINDOWS} has {size} bytes: expected {facts['size']}")

    def __reduce__(self) -> Any:
        return WindowIndex, (self.folder,)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: Any) -> Any:
        chosen = range(len(self))[index]
        if isinstance(chosen, range):
            return [self[number] for number in chosen]
        # Of another integer type, NumPy would copy the array.
        clip = int(self.starts.searchsorted(self.starts.dtype.type(chosen), side="right")) - 1
        return self.clip(clip)[chosen - int(self.starts[clip])]

    def __iter__(self) -> Iterator[Window]:
        for number in range(self.num_clips):
            yield from self.clip(number)

    @property
    def num_clips(self) -> int:
        return len(self.offsets)

    def clip(self, number: int) -> list[Window]:
        """Returns the windows of a clip by its number in dataset order; raises DataError if the index is damaged."""
        offset, size, text = int(self.offsets[number]), PIECE, b""
        while (end := text.find(b"\n")) < 0:
            text, size = os.pread(self._file.fileno(), size, offset), size * 8
            if not text:
                raise DataError(f"{self.folder} is damaged: delete it, and it is written again at the next start")
        (path, line, _), (relative_path, mark, windows) = json.loads(text[:end])
        return [
            Window(key, path, relative_path, start, end, interval, captions, line, mark)
            for key, start, end, interval, captions in windows
        ]

    def find_paths(self, paths: Iterable[str]) -> set[str]:
        """Returns the entries of `paths` (absolute, without links) that are clips of this dataset."""
        import numpy as np

        known = np.load(self.folder / "path.npy", mmap_mode="r")  # here, so that its memory is free afterwards
        wanted = list(paths)
        hashes = np.array([short_hash(path) for path in wanted], np.uint64)
        found = known[known.searchsorted(hashes).clip(max=len(known) - 1)]
        return {path for path, is_equal in zip(wanted, found == hashes) if is_equal}


def index_folder(*facts: Any) -> Path:
    """Returns the folder of the indexes of a dataset, by its name and the settings that affect its windows."""
    key = hashlib.sha256(repr((FORMAT_VERSION, os.getcwd(), facts)).encode()).hexdigest()
    return cache_folder("datasets") / key[:16]


def open_index(folder: Path) -> WindowIndex | None:
    """Opens the index in a folder; None if it does not exist or is damaged."""
    try:
        return WindowIndex(folder)
    except DAMAGED:
        return None


def build_index(dataset: Any, folder: Path) -> WindowIndex:
    """Writes the index of a dataset, or waits until another process of this machine has written it, and opens it.

    Args:
        dataset: The `VideoDataset`.
        folder: Folder of the index, which depends on the version of the dataset's files.

    Raises:
        DataError: If the dataset cannot be read, or the folder cannot be written.
    """

    def build(aside: Path) -> None:
        log.info("%s is large: writing an index of its windows to %s, once", dataset.name, folder)
        write_index(dataset, aside)

    try:
        return build_once(folder, partial(open_index, folder), build)
    except OSError as error:
        raise DataError(
            f"the index of the windows of {dataset.name} cannot be written: {error}. Free disk space, or set "
            "XDG_CACHE_HOME to a folder on a larger disk"
        ) from None


def write_index(dataset: Any, folder: Path) -> None:
    """Writes the files of an index. The memory that it needs is that of the rejections, and about 25 bytes per clip."""
    import numpy as np

    offset = 0
    with ExitStack() as stack:
        text, *columns = (stack.enter_context(open(folder / file, "wb")) for file in (WINDOWS, *COLUMNS))
        for record, windows in dataset.read_clips():
            uuid = record.facts["uuid"]
            windows = sorted(windows, key=lambda window: window.key)
            rows = [[w.key, w.start_frame, w.end_frame, w.temporal_interval, w.captions] for w in windows]
            content = json.dumps([record.relative_path, record.mark, rows])
            line = f"[{json.dumps([record.path, record.line, uuid])}, {content}]\n".encode()
            hashes = map(short_hash, (uuid, content, location_of(record.path)))
            for column, value in zip(columns, (*hashes, offset, len(rows))):
                column.write(struct.pack("=Q", value))
            text.write(line)
            offset += len(line)
            if dataset.num_records % LOG_INTERVAL == 0:
                log.info("%s: %s records indexed", dataset.name, f"{dataset.num_records:,}")

    def read_column(column: str, dtype: Any = np.int64) -> np.ndarray:
        values = np.fromfile(folder / column, dtype)
        (folder / column).unlink()
        return values

    uuids = read_column("uuid", np.uint64)
    order = uuids.argsort(kind="stable")
    uuids.sort()
    is_repeated = np.zeros(len(order), bool)
    is_repeated[1:] = uuids[1:] == uuids[:-1]
    del uuids
    counts = read_column("count").astype(np.int32)[order]
    used = ~is_repeated & (counts > 0)
    counts = np.concatenate([[0], counts[used]], dtype=np.int32)
    np.save(folder / "starts.npy", counts.cumsum(dtype=np.int32 if counts.sum() < 1 << 31 else np.int64))
    del counts
    offsets = read_column("offset")[order]
    repeated: dict[int | None, Rejection] = {}
    with open(folder / WINDOWS, "rb") as lines:
        for start in offsets[is_repeated].tolist():
            lines.seek(start)
            (_, number, uuid), _ = json.loads(lines.readline())
            repeated[number] = repeated_uuid(dataset.name, number, uuid)
    np.save(folder / "offset.npy", offsets[used])
    del offsets
    rejections = [*(one for one in dataset.rejections if one.line not in repeated), *repeated.values()]
    order = order[used]
    paths = read_column("path", np.uint64)[order]
    paths.sort()
    np.save(folder / "path.npy", paths)
    del paths
    facts = {
        "size": offset,
        "num_records": dataset.num_records,
        "content": hashlib.sha256(read_column("content")[order].data).hexdigest(),
        "rejections": [astuple(rejection) for rejection in rejections],
    }
    (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")


def location_of(path: str) -> str:
    """Returns the path of a clip as `absolute_path` does, but resolves the links to each folder only once."""
    if os.path.islink(path):
        return absolute_path(path)
    folder, slash, name = path.rpartition("/")
    return f"{absolute_folder(folder + slash or '.').rstrip('/')}/{name}"


absolute_folder = lru_cache(maxsize=65536)(absolute_path)
