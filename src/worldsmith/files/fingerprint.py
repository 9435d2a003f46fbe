"""Fingerprints of files and folders: what tells that an input of an action is still the same. Never a time."""

from __future__ import annotations

import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from worldsmith.files.errors import UserError
from worldsmith.files.json_file import read_json_object
from worldsmith.files.manifest import MANIFEST, THREADS, read_once, summarize_file

LINEAGE = "lineage.json"
"""Lineage record of a result, see `worldsmith.monitor.lineage`."""
ABOUT_ITSELF = (MANIFEST, "README.md", "worldsmith.json")
"""Files that describe a folder and may be written after its content."""
TRAINING_STATE = ("optim/", "scheduler/", "trainer/", "dataloader/")
"""Parts of a checkpoint that do not affect the model, and may be removed to free disk space."""
MEDIA = (
    *(".mp4", ".avi", ".mov", ".mkv", ".webm", ".gif", ".jpg", ".jpeg", ".png", ".webp", ".bmp"),
    *(".tar", ".gz", ".zip", ".npy", ".npz"),
)


def fingerprint(path: str | Path) -> str:
    """`sha256:…` of a file's content, or of a folder's: over the name, size and content of every file in it.

    A file that the folder's own `manifest.json` lists counts by its CRC-32, a file of the Hugging Face cache by the
    SHA-256 that it is stored under, and images, videos and archives by their size alone; all others by their SHA-256.
    A file is read once in a process unless it changes, also where its checksum is verified. A run folder counts as its
    latest checkpoint, a checkpoint without its training state. Hidden files do not count, nor does what a folder says
    about itself.

    Raises OSError where nothing can be read, UserError for a folder that lacks what its manifest lists.
    """
    path = Path(path)
    if path.is_file():
        return f"sha256:{content(path)}"
    if (path / "checkpoints").is_dir() and (path / "config.yaml").is_file():
        latest = path / "checkpoints" / "latest_checkpoint.txt"
        path = latest.parent / latest.read_text(encoding="utf-8").strip() if latest.is_file() else path / "config.yaml"
        return fingerprint(path)
    listed = listed_files(path)
    state = TRAINING_STATE if listed else ()
    names = sorted({*listed, *(name for name in names_in(path) if not name.startswith(state))})
    with ThreadPoolExecutor(THREADS) as pool:
        marks = list(pool.map(lambda name: mark(path, name, is_listed=name in listed), names))
    digest = hashlib.sha256("".join(f"{name} {found}\n" for name, found in zip(names, marks)).encode())
    return f"sha256:{digest.hexdigest()}"


def names_in(folder: Path) -> list[str]:
    """Returns the files below a folder that count, by their paths in it."""
    names = []
    for root, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        names += [os.path.relpath(os.path.join(root, name), folder) for name in files if not name.startswith(".")]
    return [name for name in names if name not in ABOUT_ITSELF and not is_record(name)]


def is_record(name: str) -> bool:
    """Returns whether a file tells what others were made from: `lineage.json`, or `NAME.lineage.json`."""
    return name == LINEAGE or name.endswith(f".{LINEAGE}")


def fail(error: OSError) -> None:
    raise error


def listed_files(folder: Path) -> set[str]:
    """Returns the files that the folder's own manifest lists; none for other programs' files of that name."""
    if not (folder / MANIFEST).is_file():
        return set()
    files = read_json_object(folder / MANIFEST).get("files")
    if not isinstance(files, dict) or not all(isinstance(entry, list) and len(entry) == 2 for entry in files.values()):
        return set()
    return {name for name in files if not name.startswith(TRAINING_STATE)}


def mark(folder: Path, name: str, *, is_listed: bool) -> str:
    """Returns the size and the cheapest reliable checksum of a file."""
    file = folder / name
    if is_listed:
        if not file.is_file():
            raise UserError(f"{folder} is damaged: {name} is missing, although its {MANIFEST} lists it")
        size, crc = summarize_file(file)
        return f"{size} crc32:{crc}"
    size = file.stat().st_size
    return f"{size}" if file.suffix.lower() in MEDIA else f"{size} {content(file)}"


@read_once
def content(file: Path) -> str:
    """Computes the SHA-256 of a file, as hexadecimal digits."""
    target = file.resolve() if file.is_symlink() else file
    if target.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{64}", target.name):
        return target.name
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
