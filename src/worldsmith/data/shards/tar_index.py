"""Index of the members of a tar file, read once from its headers and cached on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from worldsmith.data.shards.addresses import read_range
from worldsmith.data.stream.errors import READ_ERRORS, DataError
from worldsmith.files.atomic import replacing
from worldsmith.files.remote import cache_folder, open_system

FORMAT_VERSION = 1
TEXTS = (".json", ".txt")
MOST_TEXT = 1 << 20
"""Max size in bytes of a text member; longer members are not read."""
PIECE = 4096
"""Number of bytes at the start, and at the end, of a member that are hashed."""
BLOCK = 1 << 16
"""Bytes per storage request, enough for the end of a clip, the text members after it and the next header."""
READERS = 8
META = re.compile(r"__[^/]*__($|/)")
"""Matches the member names that WebDataset reserves for itself."""


class Member(NamedTuple):
    """Regular file in a tar archive."""

    name: str
    start: int
    """Byte offset of its content in the tar archive."""
    size: int
    """Size of its content in bytes."""
    mark: str
    """Fingerprint of the member: 12 hex digits of a hash of its size and its first and last bytes; "" for text."""
    text: str | None
    """Content of a text member (.json or .txt); None for other members, and if it is too long or not UTF-8."""


@dataclass(frozen=True, slots=True)
class TarIndex:
    """Index of a tar file: its members up to the first error, and the position and reason of that error (`fault`)."""

    file: str
    members: list[Member]
    fault: tuple[int, str] | None
    """(offset of the first unreadable byte of the tar file, reason); None if the file has no error."""


def read_indices(files: Sequence[str]) -> Iterator[TarIndex]:
    """Yields the index of each tar file in order; a few files are read at a time, in several threads.

    Raises:
        DataError: If a shard does not exist or its storage cannot be reached.
    """
    with ThreadPoolExecutor(READERS) as pool:
        for first in range(0, len(files), 4 * READERS):
            yield from pool.map(index_of, files[first : first + 4 * READERS])


def index_of(file: str) -> TarIndex:
    """Returns the index of a tar file (path or URL), from the cache if the file has not changed.

    If the file cannot be read, the index has no members and a fault, and is not cached.

    Raises:
        DataError: If the shard does not exist or its storage cannot be reached or has no random access.
    """
    try:
        system, path = open_system(file)
        facts = system.info(path)
        size = facts.get("size")
        if facts.get("type") != "file" or size is None:
            raise DataError(unseekable(file) if size is None else f"{file} is not a file")
        etag = str(facts.get("ETag") or facts.get("etag") or "")
        key = hashlib.sha256(repr((FORMAT_VERSION, file, size, system.ukey(path), etag)).encode()).hexdigest()
        cached = cache_folder("shards") / f"{key}.json"
        if (known := read_cached(cached, file)) is not None:
            return known
        if size and len(read_range(file, 0, 1)) != 1:
            raise DataError(unseekable(file))
        with system.open(path, "rb", block_size=BLOCK, cache_type="readahead") as raw:
            index = read_headers(file, raw, size)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"the shard {file} does not exist") from None
    except OSError as error:
        if error.errno not in READ_ERRORS:
            raise unreachable(file, error) from None
        return TarIndex(file, [], (0, f"the shard cannot be read: {error.strerror}"))
    except Exception as error:  # each storage has errors of its own, a missing library among them
        raise unreachable(file, error) from None
    save_index(cached, index)
    return index


def unreachable(file: str, error: Exception) -> DataError:
    return DataError(f"the shard {file} cannot be read: {type(error).__name__}: {error}")


def unseekable(file: str) -> str:
    return (
        f"{file}: the server does not support range requests; put `filecache::` before the address to use a local copy"
    )


def read_headers(file: str, raw: BinaryIO, size: int) -> TarIndex:
    """Builds the index of a ustar, pax or GNU tar from its headers; at an error, the index ends and has a fault.

    Args:
        file: Path or URL of the tar file, for the index.
        raw: Opened tar file.
        size: Size of the tar file in bytes.
    """
    members: list[Member] = []

    def damaged(offset: int, why: str) -> TarIndex:
        offset = min(offset, size)  # where only the padding is cut
        return TarIndex(file, members, (offset, f"{why} at byte {offset} of {size}; {len(members)} files before it"))

    end = 0
    try:
        with tarfile.open(fileobj=raw, mode="r:") as tar:
            while (header := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # it would keep them all
                if header.size < 0:
                    return damaged(end, f"{printable(header.name)} has a negative size")
                if header.offset_data + header.size > size:
                    return damaged(end, f"{printable(header.name)} is cut off")
                if header.isreg() and not header.issparse() and not META.match(header.name):
                    members.append(member_of(raw, header))
                end = tar.offset
    except (tarfile.TarError, ValueError, EOFError, OverflowError, MemoryError) as error:
        return damaged(end, f"the tar cannot be read ({error})")
    raw.seek(end)  # tarfile treats a damaged header as the end of the archive, without an error
    ending = raw.read(tarfile.BLOCKSIZE)
    if ending.strip(b"\0"):
        return damaged(end, "a damaged header")
    if len(ending) < tarfile.BLOCKSIZE:
        return damaged(end, "it lacks the end-of-archive marker")
    return TarIndex(file, members, None)


def member_of(raw: BinaryIO, header: tarfile.TarInfo) -> Member:
    start, size = header.offset_data, header.size
    raw.seek(start)
    if header.name.lower().endswith(TEXTS):
        content = raw.read(min(size, MOST_TEXT + 1))
        text = None
        if size <= MOST_TEXT:
            with contextlib.suppress(UnicodeDecodeError):
                text = content.decode("utf-8-sig")
        return Member(printable(header.name), start, size, "", text)
    digest = hashlib.sha256(str(size).encode())
    digest.update(raw.read(min(size, PIECE)))
    raw.seek(start + max(0, size - PIECE))
    digest.update(raw.read(min(size, PIECE)))
    return Member(printable(header.name), start, size, digest.hexdigest()[:12], None)


def printable(name: str) -> str:
    """Returns a member name with escape sequences instead of bytes that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def read_cached(path: Path, file: str) -> TarIndex | None:
    try:
        found = json.loads(path.read_bytes())
        fault = tuple(found["fault"]) if found["fault"] else None
        return TarIndex(file, [Member(*member) for member in found["members"]], fault)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save_index(path: Path, index: TarIndex) -> None:
    """Writes an index to the cache file `path`; ignores errors, since headers can be read again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=False) as incoming:
            incoming.write_text(json.dumps({"members": index.members, "fault": index.fault}), encoding="utf-8")
