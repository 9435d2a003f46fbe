"""Uploads and downloads complete files of remote folders (s3://bucket/folder); each file is verified."""

from __future__ import annotations

import base64
import hashlib
import posixpath
import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from worldsmith.files.atomic import build_once
from worldsmith.files.checksum_manifest import summarize_file
from worldsmith.files.errors import UserError
from worldsmith.files.remote import (
    SECRETS,
    VERSIONS,
    WEB,
    RemoteError,
    cache_folder,
    full_address,
    join_address,
    open_system,
    retry,
)

THREADS = 4
"""Number of files that are transferred at the same time; of a large file, up to ten parts."""
PART = 50 * 2**20
"""Size in bytes of the parts of a large upload, the default of fsspec; the ETag of S3 depends on it."""


Known = Mapping[str, list[int]]
"""Relative path of each file -> [size in bytes, CRC-32]."""
Listing = Mapping[str, Mapping[str, Any]]
"""Relative path of each file -> fsspec's `info`, as from `list_remote`."""


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
        FileNotFoundError: If the page of a web server links to a file that does not exist.
        RemoteError: If the storage cannot be reached or denies access.
    """

    def find() -> tuple[Any, str, dict[str, dict[str, Any]]]:
        system, path = open_fresh(address)
        found = system.find(path, maxdepth=None if recursive else 1, detail=True)
        if not found and address.startswith(WEB):
            system.info(path)  # `find` ignores that a server cannot be reached
        return system, path, found

    def complete(name: str) -> dict[str, Any]:
        # Pages of web servers state no sizes, and `find` no type of a single file there.
        is_complete = "type" in found[name] and found[name].get("size") is not None
        return found[name] if is_complete else retry(partial(system.info, name), system.unstrip_protocol(name))

    try:
        system, path, found = retry(find, address)
    except FileNotFoundError:
        return {}
    # Object stores have empty objects such as `clips/` for folders; pages of web servers have links such as `?C=M;O=A`.
    pairs = [(name, posixpath.relpath(name, path)) for name in found if not name.endswith("/")]
    names = {file: name for name, file in pairs if not (name.startswith(WEB) and "/?" in f"/{file}")}
    with ThreadPoolExecutor(THREADS) as pool:
        infos = zip(names, pool.map(complete, names.values()))
        return {file: info for file, info in infos if info["type"] == "file"}


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


def cache_key(address: str, files: Listing) -> str:
    """Returns a key that changes if a file of a remote folder is replaced; `files` as from `list_remote`."""
    facts = [(name, info["size"], *(info[key] for key in VERSIONS if info.get(key))) for name, info in files.items()]
    return hashlib.sha256(repr((address, sorted(facts, key=str))).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class RemoteModel:
    """The needed files of a model in a store, and their folder in the cache of models on this machine."""

    address: str
    """Address of the model, for messages and for the key in the cache."""
    root: str
    """Address of the remote folder."""
    files: Listing
    """The needed files, as from `list_remote`."""
    inner: str = ""
    """Path of the model relative to the folder, such as the name of a file."""
    key: Listing | None = None
    """Files whose replacement in the store causes a new download; None: all of `files`."""

    @property
    def bytes(self) -> int:
        """Size of all needed files. Raises RemoteError if the server does not state the size of a file."""
        if unknown := [name for name, info in self.files.items() if info["size"] is None]:
            address = SECRETS.sub("", join_address(self.root, unknown[0]))
            why = "expected its size, which the server does not state"
            raise RemoteError(f"{address}: {why}. Download the files, and name the local copy")
        return sum(info["size"] for info in self.files.values())

    @property
    def folder(self) -> Path:
        """Folder of the files in the cache; it exists only after a complete download."""
        key = cache_key(self.address, self.files if self.key is None else self.key)
        return cache_folder("models") / key / self.root.rpartition("/")[2]

    def cached(self) -> Path | None:
        """Returns the path of the model in the cache; None if it is not there."""
        return self.folder / self.inner if self.folder.exists() else None

    def fetch(self, field: str) -> Path:
        """Returns the path of the model in the cache; one process of the machine downloads it if needed.

        Args:
            field: Config field or argument that contains the address; begins error messages.

        Raises:
            RemoteError: If a file cannot be read.
            UserError: If the disk has too little free space.
        """

        def download(folder: Path) -> None:
            free = shutil.disk_usage(folder).free
            if self.bytes > free:
                raise UserError(
                    f"{field} {self.address}: expected {self.bytes / 2**20:.1f} MiB free in "
                    f"{cache_folder('models')}, found {free / 2**20:.1f} MiB. Free disk space, or set XDG_CACHE_HOME "
                    "to a folder on a larger disk"
                )
            download_files(self.root, folder, {file: [info["size"]] for file, info in self.files.items()})

        return build_once(self.folder, self.cached, download)


def find_remote(name: str, layouts: Sequence[Sequence[str]] = (("*",),), *, field: str) -> RemoteModel:
    """Finds the needed files of a model folder, or of one file, in a store; downloads nothing.

    A file needs the file of the same name and the suffix .json, too, if it exists: that may contain its config.

    Args:
        name: Address of the folder or file.
        layouts: File patterns, one list per possible layout; of the first layout whose first pattern matches a file,
            all matching files are needed.
        field: Config field or argument that contains `name`; begins error messages.

    Raises:
        FileNotFoundError: If the store has no such folder, or no file of any layout.
        RemoteError: If the storage cannot be reached or denies access.
    """
    address = full_address(name)
    files = list_remote(address)
    if list(files) == ["."]:
        root, _, name = address.rpartition("/")
        config = posixpath.splitext(name)[0] + ".json"
        listed = {name: files["."], config: list_remote(join_address(root, config)).get(".")}
        needed = {file: info for file, info in listed.items() if info is not None}
        return RemoteModel(address, root, needed, inner=name)
    for patterns in layouts:
        if any(fnmatchcase(file, patterns[0]) for file in files):
            needed = {file: info for file, info in files.items() if any(fnmatchcase(file, one) for one in patterns)}
            return RemoteModel(address, address, needed)
    lacks = (
        f"no {' or '.join(patterns[0] for patterns in layouts)} in it"
        if files
        else "the store has no such file or folder"
    )
    raise FileNotFoundError(f"{field} {SECRETS.sub('', address)}: {lacks}")


def fetch_folder(
    name: str, layouts: Sequence[Sequence[str]] = (("*",),), *, field: str, download: bool = True
) -> Path | None:
    """Returns the local copy of a model folder, or of one file, in a store; it is downloaded once per machine.

    It is downloaded again if a file in the store was replaced.

    Args:
        name: Address of the folder or file.
        layouts: File patterns, one list per possible layout, as for `find_remote`.
        field: Config field or argument that contains `name`; begins error messages.
        download: Whether it may be downloaded; False: it is only checked that it exists.

    Returns:
        Path of the folder or file; None if it is not in the cache and `download` is False.

    Raises:
        FileNotFoundError: If the store has no such folder, or no file of any layout.
        RemoteError: If the storage cannot be reached or denies access.
        UserError: If the disk has too little free space.
    """
    found = find_remote(name, layouts, field=field)
    return found.fetch(field) if download else found.cached()
