"""Uploads and downloads complete files of remote folders (s3://bucket/folder); each file is verified."""

from __future__ import annotations

import hashlib
import posixpath
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from worldsmith.files import atomic
from worldsmith.files.checksum_manifest import summarize_file
from worldsmith.files.remote import VERSIONS, cache_folder, join_address, open_system, retry

THREADS = 4
"""Number of files that are transferred at the same time; of a large file, up to ten parts."""
PART = 50 * 2**20
"""Size in bytes of the parts of a large upload, the default of fsspec; the ETag of S3 depends on it."""
LOCK_PAUSE = 0.5
"""Seconds between two attempts to find a folder that another process of this machine downloads."""


def list_remote(address: str, *, recursive: bool = True) -> dict[str, dict[str, Any]]:
    """Lists the files of a remote folder.

    Args:
        address: Address of the folder.
        recursive: Whether the files of subfolders are listed, too.

    Returns:
        fsspec's `info` of each file by its path relative to the folder; empty if the folder does not exist.

    Raises:
        RemoteError: If the storage cannot be reached or denies access.
    """

    def find() -> dict[str, dict[str, Any]]:
        system, path = open_system(address)
        system.invalidate_cache()
        found = system.find(path, maxdepth=None if recursive else 1, detail=True)
        return {posixpath.relpath(name, path): info for name, info in found.items() if info["type"] == "file"}

    try:
        return retry(find, address)
    except FileNotFoundError:
        return {}


def read_remote_text(address: str) -> str | None:
    """Returns the content of a small remote text file, without the cache; None if it does not exist.

    Raises:
        RemoteError: If the storage cannot be reached or denies access.
    """

    def read() -> str:
        system, path = open_system(address)
        return bytes(system.cat_file(path)).decode()

    try:
        return retry(read, address)
    except FileNotFoundError:
        return None


def write_remote(address: str, content: bytes) -> None:
    """Writes a small remote file and reads it back. Raises RemoteError, or FileNotFoundError without its bucket."""

    def write() -> None:
        system, path = open_system(address)
        system.pipe_file(path, content)
        if bytes(system.cat_file(path)) != content:
            raise OSError("the stored content differs from the written one")

    retry(write, address, "write")


def remove_remote(folder: str, names: Iterable[str]) -> None:
    """Deletes files of a remote folder by their relative paths; raises RemoteError if one cannot be deleted."""

    def remove() -> None:
        system, path = open_system(folder)
        left = [name for name in names if system.exists(f"{path}/{name}")]
        if left:
            system.rm([f"{path}/{name}" for name in left])
            system.invalidate_cache()
            if system.exists(f"{path}/{left[0]}"):
                raise PermissionError(f"{left[0]} is not deleted")  # s3fs ignores errors of single files

    retry(remove, folder, "write")


def upload_files(folder: Path, names: Iterable[str], address: str, known: Mapping[str, list[int]] | None = None) -> int:
    """Uploads files in several threads; a file that is already stored is skipped.

    Args:
        folder: Local folder.
        names: Relative paths of the files.
        address: Address of the remote folder.
        known: [size in bytes, CRC-32] of files by relative path, which the local files must have.

    Returns:
        Size of the files in bytes.

    Raises:
        RemoteError: If a file cannot be written, or its stored content differs.
        OSError: If a local file cannot be read, or has changed.
    """
    known = known or {}

    def upload(name: str) -> int:
        return upload_file(folder / name, join_address(address, name), known.get(name))

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(upload, names))


def upload_file(path: Path, address: str, known: list[int] | None = None) -> int:
    """Uploads a file unless it is already stored, and verifies it: by size and ETag, else by reading it back.

    Args:
        path: Local file.
        address: Address of the remote file.
        known: [size in bytes, CRC-32] that the local file must have; None: not checked.

    Returns:
        Size in bytes.
    """
    size, crc, etag = summarize_upload(path)
    if known not in (None, [size, crc]):
        raise OSError(f"{path} has changed since it was saved")

    def is_stored(system: Any, target: str) -> bool:
        system.invalidate_cache()
        info = system.info(target)
        return bool(info["size"] == size and (info.get("ETag") or "").strip('"') == etag)

    def upload() -> None:
        system, target = open_system(address)
        if system.exists(target) and is_stored(system, target):
            return
        system.put_file(str(path), target)
        if not is_stored(system, target) and remote_crc(system, target, size) != crc:
            raise OSError("the stored file differs from the local one")

    retry(upload, address, "write")
    return size


def remote_crc(system: Any, path: str, size: int) -> int:
    """Returns the CRC-32 of a remote file of at least `size` bytes; -1 if its size differs."""
    crc = 0
    for start in range(0, size, PART):
        crc = zlib.crc32(system.cat_file(path, start=start, end=min(start + PART, size)), crc)
    return crc if system.info(path)["size"] == size else -1


def summarize_upload(path: Path) -> tuple[int, int, str]:
    """Returns size in bytes, CRC-32 and the ETag that S3 without KMS gives a file: its MD5, or that of its parts."""
    crc, parts, size = 0, list[bytes](), path.stat().st_size
    step = PART if size >= 2 * PART else 2 * PART
    with open(path, "rb") as file:
        while (block := file.read(step)) or not parts:
            crc = zlib.crc32(block, crc)
            parts.append(hashlib.md5(block, usedforsecurity=False).digest())
    if len(parts) == 1:
        return size, crc, parts[0].hex()
    return size, crc, f"{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"


def download_files(address: str, folder: Path, known: Mapping[str, list[int]]) -> None:
    """Downloads files in several threads and verifies them.

    Args:
        address: Address of the remote folder.
        folder: Local folder, in which missing subfolders are created.
        known: Relative path of each file -> [size in bytes, CRC-32], or only [size in bytes].

    Raises:
        FileNotFoundError: If a file does not exist.
        RemoteError: If a file cannot be read, or its content differs.
    """

    def download(name: str) -> None:
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise OSError(f"{address} names a file outside of its folder: {name}")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        retry(partial(_download, join_address(address, name), folder / name, known[name]), join_address(address, name))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(download, known))


def _download(address: str, path: Path, known: list[int]) -> None:
    system, source = open_system(address)
    system.get_file(source, str(path))
    if (found := summarize_file(path)[: len(known)]) != known:
        raise OSError(f"expected [size, CRC-32] = {known}, received {found}")


def cache_key(address: str, files: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a key that changes if a file of a remote folder is replaced; `files` as from `list_remote`."""
    facts = [(name, info["size"], *(info[key] for key in VERSIONS if info.get(key))) for name, info in files.items()]
    return hashlib.sha256(repr((address, sorted(facts, key=str))).encode()).hexdigest()[:24]


def cached_folder(key: str, name: str, download: Callable[[Path], None] | None) -> Path | None:
    """Returns the folder `name` in the cache of models; one process of this machine downloads it if it is missing.

    Args:
        key: Key from `cache_key`.
        name: Name of the folder.
        download: Writes the files into the folder that is its argument; None: the folder is not downloaded.

    Returns:
        Path of the folder; None if it is not in the cache and `download` is None.
    """
    target = cache_folder("models") / key / name
    while not target.exists() and download is not None:
        try:
            with atomic.locked_temporary_folder(target) as aside:
                download(aside)
                atomic.publish_folder(aside, target)
        except FileExistsError:  # another process downloads it
            time.sleep(LOCK_PAUSE)
    return target if target.exists() else None
