"""Addresses of tar shards, given by patterns, and of their members: `FILE.tar#START+SIZE`."""

from __future__ import annotations

import glob
import io
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from worldsmith.data.stream.errors import DataError, SampleError, read_error
from worldsmith.files.remote import is_remote, open_cached, open_system, read_remote, retry

TAR = ".tar"
COMPRESSED = re.compile(r"\.(tgz|tar\.[a-z0-9]+)$", re.IGNORECASE)
BRACES = re.compile(r"\{([^{}]*)\}")
MAX_SHARDS = 1_000_000
"""Max number of shards that a pattern may match."""
MAX_DIGITS = 18
"""Max digits of a number in braces."""
RANGE = re.compile(r"(\d+)\.\.(\d+)")
PART = re.compile(r"(.+\.tar)#(\d+)\+(\d+)", re.DOTALL)


def shard_pattern(path: str) -> str | None:
    """Returns the pattern that matches the tar shards at `path`; None if `path` contains no shards.

    Args:
        path: A tar file, a pattern or URL of tar files, or a folder that has shards or a subfolder train/ with shards.

    Raises:
        DataError: If `path` is a remote folder that cannot be listed.
    """
    if path.endswith(TAR) or COMPRESSED.search(path):
        return path
    if is_remote(path):
        address = path.rstrip("/")
        patterns = (f"{address}/train/*{TAR}", f"{address}/*{TAR}")
        return None if ".json" in os.path.basename(address) else next(filter(list_matches, patterns), None)
    if path and Path(path).is_dir():
        for folder in (Path(path, "train"), Path(path)):
            if any(folder.glob(f"*{TAR}")):
                return f"{glob.escape(str(folder))}/*{TAR}"
    return None


def find_shards(pattern: str) -> list[str]:
    """Returns the addresses of the shards that match a pattern, in order, without duplicates.

    Args:
        pattern: Path or URL, with `{a,b}`, `{00..12}`, `*` and `[…]`.

    Raises:
        DataError: If no shard matches, too many match, or they are compressed.
    """
    if COMPRESSED.search(pattern):
        raise DataError(f"{pattern}: a compressed tar cannot be read at random positions; decompress it to {TAR}")
    if not is_remote(pattern) and os.path.isfile(pattern):  # whose name may contain signs of a pattern
        return [pattern]
    found = list(dict.fromkeys(file for one in limited(braces(pattern), pattern) for file in list_matches(one)))
    if not found:
        raise DataError(f"no shard matches {pattern}")
    return found


def braces(pattern: str) -> Iterator[str]:
    """Expands brace patterns such as `a{1,2}` and `a{00..12}` like a shell; leading zeros are kept.

    Raises:
        DataError: If a range is too large.
    """
    group = BRACES.search(pattern)
    if group is None:
        yield pattern
        return
    choices: Sequence[str] = group[1].split(",")
    if numbers := RANGE.fullmatch(group[1]):
        first, last = numbers.groups()
        if max(len(first), len(last)) > MAX_DIGITS or abs(int(last) - int(first)) >= MAX_SHARDS:
            raise too_many(pattern)
        step = 1 if int(first) <= int(last) else -1
        width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
        choices = [f"{number:0{width}d}" for number in range(int(first), int(last) + step, step)]
    for choice in choices:
        yield from braces(pattern[: group.start()] + choice + pattern[group.end() :])


def limited(files: Iterator[str], pattern: str) -> Iterator[str]:
    """Yields `files`; raises DataError, which names `pattern`, if there are more than `MAX_SHARDS`."""
    yield from itertools.islice(files, MAX_SHARDS)
    if next(files, None) is not None:
        raise too_many(pattern)


def too_many(pattern: str) -> DataError:
    return DataError(
        f"{pattern:.200} matches too many shards: expected at most {MAX_SHARDS:,}, and numbers of at most {MAX_DIGITS} "
        "digits. Use a smaller range, or a folder"
    )


def list_matches(pattern: str) -> list[str]:
    """Returns the paths or URLs that match a pattern with `*` or `[…]`, sorted; [pattern] if it has no wildcards."""
    if not any(sign in pattern for sign in "*["):
        return [pattern]
    chain, sign, last = pattern.rpartition("::")
    try:
        system, path = open_system(last)
        found = sorted(str(match) for match in retry(lambda: system.glob(path), last))
    except FileNotFoundError:  # the bucket or folder
        return []
    except Exception as error:  # each storage has errors of its own
        raise DataError(f"{pattern} cannot be listed: {error}") from None
    return [chain + sign + (system.unstrip_protocol(match) if "://" in last else match) for match in found]


def short_names(files: Sequence[str]) -> list[str]:
    """Returns the shard addresses without their common folder and suffix, so that they do not depend on the storage."""
    folders = [os.path.dirname(file).split("/") for file in files]
    common = len(list(itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*folders))))
    return ["/".join(file.split("/")[common:]).removesuffix(TAR) for file in files]


def part_address(file: str, start: int, size: int) -> str:
    """Returns the address "FILE#START+SIZE" of `size` bytes from byte `start` of a tar file."""
    return f"{file}#{start}+{size}"


def is_read_whole(path: str) -> bool:
    """Returns whether FFmpeg cannot open a clip by its path: it is the address of a tar member or remote file."""
    return is_remote(path) or PART.fullmatch(path) is not None


def absolute_path(path: str) -> str:
    """Returns a local path as an absolute path without links; an address of a remote file is returned unchanged."""
    return path if is_remote(path) else os.path.realpath(path)


def read_range(file: str, start: int, stop: int) -> bytes:
    """Reads bytes `start` to `stop` (exclusive) of a local or remote file."""
    system, path = open_system(file)
    return bytes(system.cat_file(path, start=start, end=stop))


def open_clip(path: str) -> BinaryIO:
    """Opens a clip for reading: a local file, or what `read_clip` reads, with the same errors.

    A remote file is read into memory once to fetch or verify it, and then from its cached copy on disk, since it may
    contain the videos of many samples.
    """
    if not is_read_whole(path):
        return open(path, "rb")
    try:
        cached = open_cached(path) if is_remote(path) and PART.fullmatch(path) is None else None
    except OSError as error:
        raise read_error(error) from None
    if cached is None:
        return io.BytesIO(read_clip(path))
    read_clip.cache_clear()  # it may be a large file
    return cached


@lru_cache(maxsize=1)
def read_clip(path: str) -> bytes:
    """Returns the content of a tar member or, through the cache on disk, of a remote file; caches the last result.

    Args:
        path: Address "FILE#START+SIZE" of a tar member, or address of a remote file.

    Raises:
        SampleError: missing_file, unreadable, or truncated if the tar file is shorter than the address states.
    """
    found = PART.fullmatch(path)
    file, start, size = (found[1], int(found[2]), int(found[3])) if found else (path, 0, None)
    try:
        if is_remote(file):
            data = read_remote(file, start, size)
        elif size is None:
            raise ValueError(f"{path} is not the address of a tar member or remote file")
        else:
            data = retry(lambda: read_range(file, start, start + size), file)
    except OSError as error:
        raise read_error(error) from None
    if size is not None and len(data) != size:
        raise SampleError("truncated", f"expected {size} bytes, found {len(data)}; {file} has changed during the run")
    return data
