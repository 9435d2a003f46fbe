"""`manifest.json`: size and CRC-32 of every file of a checkpoint, so that damage is found before anything is read."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MANIFEST = "manifest.json"
THREADS = 4


def list_files(folder: Path) -> list[Path]:
    """All files of a checkpoint folder but the manifest, in an order that every process agrees on."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def summarize(folder: Path, files: Iterable[Path]) -> dict[str, list[int]]:
    """[size, CRC-32] of `files` by their path below `folder`; the sums are made by several threads."""
    files = list(files)
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip([str(path.relative_to(folder)) for path in files], pool.map(summary, files)))


def write_manifest(folder: Path, entries: dict[str, list[int]]) -> None:
    (folder / MANIFEST).write_text(json.dumps({"files": dict(sorted(entries.items()))}, indent=1), encoding="utf-8")


def summary(path: Path) -> list[int]:
    """[size in bytes, CRC-32] of a file."""
    size = crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            size += len(block)
            crc = zlib.crc32(block, crc)
    return [size, crc]


def find_damage(checkpoint: Path, *, rank: int = 0, ranks: int = 1) -> str | None:
    """What is wrong with a checkpoint folder, in words; None when every file is there and unchanged.

    With `ranks` above 1 each of them reads its share of the files, and the checkpoint is whole when none finds damage.
    """
    try:
        files = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return f"it has no {MANIFEST}"
    except (ValueError, KeyError, TypeError):
        return f"its {MANIFEST} cannot be read"
    share = list(files.items())[rank::ranks]
    for name, expected in share:  # quick checks first: they spare the reading of the others
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected[0]:
            return f"{name} has {path.stat().st_size} bytes, not {expected[0]}"
    with ThreadPoolExecutor(THREADS) as pool:
        for (name, expected), found in zip(share, pool.map(lambda item: summary(checkpoint / item[0]), share)):
            if found != expected:
                return f"the content of {name} has changed (CRC-32)"
    return None
