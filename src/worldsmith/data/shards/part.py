"""A stretch of a tar, by the address `FILE.tar#START+SIZE`; FILE is a path or an address that fsspec reads."""

from __future__ import annotations

import re
import time
from functools import lru_cache

from worldsmith.data.stream.errors import SampleError

PART = re.compile(r"(.+\.tar)#(\d+)\+(\d+)", re.DOTALL)
ATTEMPTS = 4
PAUSE = 1.0
"""Seconds before the second attempt to read from afar; doubled for each further one."""


def part_of(file: str, start: int, size: int) -> str:
    return f"{file}#{start}+{size}"


def is_part(path: str) -> bool:
    return PART.fullmatch(path) is not None


def read_range(file: str, start: int, stop: int) -> bytes:
    """Bytes of a file by an address. The file system is asked for anew: fsspec keeps one for each process."""
    import fsspec

    system, path = fsspec.url_to_fs(file)
    return bytes(system.cat_file(path, start=start, end=stop))


@lru_cache(maxsize=1)
def read_part(path: str) -> bytes:
    """All of a part, in one request; the last one is kept. Raises SampleError: missing_file, unreadable, truncated.

    What lies afar is asked for several times, since networks fail for a while.
    """
    if (found := PART.fullmatch(path)) is None:
        raise ValueError(f"{path} is no part of a tar")
    file, start, size = found[1], int(found[2]), int(found[3])
    attempts = ATTEMPTS if "://" in file else 1
    for attempt in range(1, attempts + 1):
        try:
            data = read_range(file, start, start + size)
            break
        except FileNotFoundError:
            raise SampleError("missing_file", f"{file} does not exist") from None
        except Exception as error:  # each storage has errors of its own
            if attempt == attempts:
                raise SampleError("unreadable", f"{type(error).__name__}: {error} ({attempt} attempts)") from None
            time.sleep(PAUSE * 2 ** (attempt - 1))
    if len(data) != size:
        raise SampleError("truncated", f"{len(data)} bytes of {size} are there; {file} has changed under the run")
    return data
