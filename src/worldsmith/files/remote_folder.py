"""Uploads and downloads complete files of remote folders (s3://bucket/folder); each file is verified."""

from __future__ import annotations

import base64
import hashlib
import posixpath
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from worldsmith.files.atomic import build_once
from worldsmith.files.checksum_manifest import summarize_file
from worldsmith.files.remote import VERSIONS, RemoteError, cache_folder, join_address, open_system, retry

THREADS = 4
"""Number of files that are transferred at the same time; of a large file, up to ten parts."""
PART = 50 * 2**20
"""Size in bytes of the parts of a large upload, the default of fsspec; the ETag of S3 depends on it."""


Known = Mapping[str, list[int]]
"""Relative path of each file -> [size in bytes, CRC-32]."""


def open_fresh(address: str) -> tuple[Any, str]:
    """Returns the fsspec file system of an address, without cached listings, and the path of the address in it."""
    system, path = open_system(address)
    system.invalidate_cache()
    return system, path


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
        system, path = open_fresh(address)
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
        system, path = open_fresh(address)
        return bytes(system.cat_file(path)).decode()

    try:
        return retry(read, address)
    except FileNotFoundError:
        return None


def write_remote(address: str, content: bytes) -> None:
    """Writes a remote file and compares its MD5, or reads it back if the storage states none.

    Raises:
        FileNotFoundError: If the bucket does not exist.
        RemoteError: If the file cannot be written.
    """

    def write() -> None:
        system, path = open_fresh(address)
        system.pipe_file(path, content)
        is_equal = stored_md5(system.info(path)) == hashlib.md5(content, usedforsecurity=False).hexdigest()
        if not is_equal and bytes(system.cat_file(path)) != content:
            raise OSError("the stored content differs from the written one")

    retry(write, address, "write")


def remove_remote(folder: str, names: Iterable[str]) -> None:
    """Deletes files of a remote folder by their relative paths; raises RemoteError if one cannot be deleted."""

    def present() -> list[str]:
        return sorted(list_remote(folder, recursive=any("/" in name for name in wanted)).keys() & wanted)

    def remove() -> None:
        system, path = open_fresh(folder)
        if found := present():
            system.rm([f"{path}/{name}" for name in found])
            if left := present():
                raise PermissionError(f"{left[0]} is not deleted")  # s3fs ignores errors of single files

    wanted = set(names)
    retry(remove, folder, "write")


def upload_files(folder: Path, names: Iterable[str], address: str, known: Known | None = None) -> None:
    """Uploads files in several threads and verifies them; files that are already stored are skipped.

    The size and MD5 in the store (S3: ETag) are compared with the local file. If the store states no MD5, as in a
    bucket that is encrypted by KMS, the file is uploaded and read back.

    Args:
        folder: Local folder.
        names: Relative paths of the files.
        address: Address of the remote folder.
        known: [size in bytes, CRC-32] of files by relative path, which the local files must have.

    Raises:
        RemoteError: If a file cannot be written, or its stored content differs.
        OSError: If a local file cannot be read, or has changed.
    """
    names, known = list(names), known or {}

    def differing() -> list[str]:
        stored = list_remote(address, recursive=any("/" in name for name in names))
        found = {name: (info["size"], stored_md5(info)) for name, info in stored.items()}
        return [name for name, (size, _, *md5s) in facts.items() if found.get(name) not in [(size, m) for m in md5s]]

    def put(name: str) -> None:
        system, path = open_fresh(address)
        system.put_file(str(folder / name), f"{path}/{name}")

    with ThreadPoolExecutor(THREADS) as pool:
        facts = dict(zip(names, pool.map(lambda name: summarize_upload(folder / name), names)))
        if changed := [name for name, (size, crc, *_) in facts.items() if known.get(name, [size, crc]) != [size, crc]]:
            raise OSError(f"{folder / changed[0]} has changed since it was saved")
        list(pool.map(lambda name: retry(partial(put, name), join_address(address, name), "write"), differing()))
    for name in differing():
        if retry(partial(remote_crc, join_address(address, name)), address) != facts[name][1]:
            raise RemoteError(f"{join_address(address, name)} differs from the uploaded file {folder / name}")


def remote_crc(address: str) -> int:
    """Returns the CRC-32 of a remote file, which is read in parts."""
    system, path = open_fresh(address)
    crc, size = 0, system.info(path)["size"]
    for start in range(0, size, PART):
        crc = zlib.crc32(system.cat_file(path, start=start, end=min(start + PART, size)), crc)
    return crc


def stored_md5(info: Mapping[str, Any]) -> str:
    """Returns the ETag (S3) or MD5 (Google Cloud Storage) in fsspec's `info`, in hexadecimal; empty without both."""
    return (info.get("ETag") or "").strip('"') or base64.b64decode(info.get("md5Hash") or "").hex()


def summarize_upload(path: Path) -> tuple[int, int, str, str]:
    """Returns size in bytes, CRC-32, MD5, and the ETag that S3 without KMS gives a file that was uploaded in parts."""
    crc, parts, size, md5 = 0, list[bytes](), path.stat().st_size, hashlib.md5(usedforsecurity=False)
    step = PART if size >= 2 * PART else 2 * PART
    with open(path, "rb") as file:
        while (block := file.read(step)) or not parts:
            crc = zlib.crc32(block, crc)
            md5.update(block)
            parts.append(hashlib.md5(block, usedforsecurity=False).digest())
    return size, crc, md5.hexdigest(), f"{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"


def download_files(address: str, folder: Path, known: Known) -> None:
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
    system, source = open_fresh(address)
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

    def find() -> Path | None:
        return target if target.exists() else None

    return find() if download is None else build_once(target, find, download)
