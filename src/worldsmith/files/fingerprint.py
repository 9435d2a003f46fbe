"""Fingerprints of files and folders: they show whether an input of an action has changed, independent of file times."""

from __future__ import annotations

import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from worldsmith.files.checksum_manifest import MANIFEST, THREADS, read_once, summarize_file
from worldsmith.files.errors import UserError
from worldsmith.files.json_file import read_json_object

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
    """Computes the content fingerprint `sha256:…` of a file or folder.

    The fingerprint of a file is its SHA-256. That of a folder covers the name, the size and a checksum of every file:

    - CRC-32 for files that the `manifest.json` of the folder lists,
    - the SHA-256 in the file name for files of the Hugging Face cache,
    - only the size for images, videos, arrays and archives,
    - SHA-256 for all other files.

    A run folder counts as its latest checkpoint, or as its `config.yaml` if it has no checkpoint; a checkpoint counts
    without its training state. Hidden files and files that only describe the folder (manifest, README, lineage) do not
    count. An unchanged file is read once per process, together with the verification of its checksum.

    Args:
        path: Local file or folder.

    Returns:
        The text `sha256:` and 64 hexadecimal digits.

    Raises:
        OSError: If a file or folder cannot be read.
        UserError: If a file that the manifest lists is missing.
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
        marks = list(pool.map(lambda name: checksum_text(path, name, is_listed=name in listed), names))
    digest = hashlib.sha256("".join(f"{name} {found}\n" for name, found in zip(names, marks)).encode())
    return f"sha256:{digest.hexdigest()}"


def names_in(folder: Path) -> list[str]:
    """Returns the relative paths of all files below a folder that count for its fingerprint."""
    names = []
    for root, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        names += [os.path.relpath(os.path.join(root, name), folder) for name in files if not name.startswith(".")]
    return [name for name in names if name not in ABOUT_ITSELF and not is_record(name)]


def is_record(name: str) -> bool:
    """Returns whether a file name is that of a lineage record: `lineage.json` or `NAME.lineage.json`."""
    return name == LINEAGE or name.endswith(f".{LINEAGE}")


def fail(error: OSError) -> None:
    raise error


def listed_files(folder: Path) -> set[str]:
    """Returns the relative paths of the model files that `manifest.json` lists; empty without a valid manifest."""
    if not (folder / MANIFEST).is_file():
        return set()
    files = read_json_object(folder / MANIFEST).get("files")
    if not isinstance(files, dict) or not all(isinstance(entry, list) and len(entry) == 2 for entry in files.values()):
        return set()
    return {name for name in files if not name.startswith(TRAINING_STATE)}


def checksum_text(folder: Path, name: str, *, is_listed: bool) -> str:
    """Returns the size of the file `name` in `folder` and, unless it is a media file, its checksum as text.

    `is_listed`: the manifest lists the file, so that its checksum is CRC-32; otherwise it is SHA-256.
    """
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
    """Returns the SHA-256 of a file as hexadecimal digits.

    For a file of the Hugging Face cache whose name is its SHA-256, the name is returned and the file is not read.

    Args:
        file: Existing file.
    """
    target = file.resolve() if file.is_symlink() else file
    if target.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{64}", target.name):
        return target.name
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
