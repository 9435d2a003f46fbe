"""`manifest.json`: size and CRC-32 of every file of a checkpoint, to find damage before the files are loaded."""

from __future__ import annotations

import json
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import TypeVar

from worldsmith.files.lines import require_regular

logger = logging.getLogger(__name__)
T = TypeVar("T")

MANIFEST = "manifest.json"
THREADS = 4
WORTH_A_WORD = 2**30
"""Min size in bytes of files whose verification is logged."""
SETTLED = 2.0
"""Min age of a file in seconds at which every later change of the file also changes its time stamps."""


def read_once(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """Decorator that caches the result of `read`, a function of a file's content, while the file is unchanged.

    A file is unchanged if its path, device, inode, size, mtime and ctime are equal. A file written less than `SETTLED`
    seconds ago is read again, since another change within the clock resolution would not be noticed.
    """
    known: dict[tuple[str, int, int, int, int, int], T] = {}

    @wraps(read)
    def read_or_recall(file: Path) -> T:
        now, found = time.time(), os.stat(file)
        key = (str(file), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if key in known:
            return known[key]
        value = read(file)
        if now - max(found.st_mtime, found.st_ctime) > SETTLED:
            known[key] = value
        return value

    return read_or_recall


def list_files(folder: Path) -> list[Path]:
    """Returns the paths of all files below a checkpoint folder except `manifest.json`, sorted.

    Args:
        folder: Checkpoint folder.
    """
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def summarize_files(folder: Path, files: Iterable[Path]) -> dict[str, list[int]]:
    """Computes size and CRC-32 of each file in several threads.

    Args:
        folder: Folder that contains the files.
        files: Paths below `folder`.

    Returns:
        [size in bytes, CRC-32] of each file by its path relative to `folder`.
    """
    files = list(files)
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip([str(path.relative_to(folder)) for path in files], pool.map(summarize_file, files)))


def write_manifest(folder: Path, entries: dict[str, list[int]]) -> None:
    """Writes `manifest.json`, which lists size and CRC-32 of all files of a checkpoint, into `folder`.

    Args:
        folder: Checkpoint folder.
        entries: [size in bytes, CRC-32] of each file by relative path, see `summarize_files`.
    """
    (folder / MANIFEST).write_text(json.dumps({"files": dict(sorted(entries.items()))}, indent=1), encoding="utf-8")


@read_once
def summarize_file(path: Path) -> list[int]:
    """Computes size and CRC-32 of a file; an unchanged file is read once per process.

    Args:
        path: Existing file.

    Returns:
        [size in bytes, CRC-32].
    """
    size = crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            size += len(block)
            crc = zlib.crc32(block, crc)
    return [size, crc]


def find_damage(checkpoint: Path, *, only: tuple[str, ...] = ("",), rank: int = 0, ranks: int = 1) -> str | None:
    """Compares the files of a checkpoint folder with its manifest and describes the first damage.

    Args:
        checkpoint: Checkpoint folder with `manifest.json`.
        only: Prefixes of the relative paths to check, such as `("model/",)`; the default checks all files.
        rank: Index of this rank.
        ranks: Number of ranks that divide the files among them; the checkpoint is intact if none finds damage.

    Returns:
        Description of the first damage, such as "model/x is missing"; None if the files of this rank are intact. A
        missing or invalid manifest counts as damage.
    """
    try:
        require_regular(checkpoint / MANIFEST)
        files = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
        wanted = [(str(name), [int(size), int(crc)]) for name, (size, crc) in files.items() if name.startswith(only)]
    except FileNotFoundError:
        return f"it has no {MANIFEST}"
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        return f"its {MANIFEST} cannot be read: {error}"
    if not wanted:
        return f"its {MANIFEST} lists no file{'' if only == ('',) else ' of its weights'}"
    share, total = wanted[rank::ranks], sum(size for _, (size, _) in wanted)
    for name, (size, _) in share:  # quick checks first: they spare the reading of the others
        path = checkpoint / name
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error}"
        if not path.is_file():
            return f"{name} is not a file"
        if found != size:
            return f"{name} has {found} bytes, expected {size}"
    if rank == 0 and total >= WORTH_A_WORD:
        logger.info("%s: verifying the checksums of %.1f GiB", checkpoint, total / 2**30)
    with ThreadPoolExecutor(THREADS) as pool:
        damages = pool.map(lambda entry: find_change(checkpoint, *entry), share)
        return next((damage for damage in damages if damage is not None), None)


def find_change(checkpoint: Path, name: str, expected: list[int]) -> str | None:
    """Compares a file of a checkpoint with its manifest entry.

    Args:
        checkpoint: Checkpoint folder.
        name: Relative path of the file.
        expected: [size in bytes, CRC-32] in the manifest.

    Returns:
        Description of the difference, such as "the content of model/x has changed (CRC-32)"; None if it is unchanged.
    """
    try:
        return None if summarize_file(checkpoint / name) == expected else f"the content of {name} has changed (CRC-32)"
    except OSError as error:
        return f"{name} cannot be read: {error}"
