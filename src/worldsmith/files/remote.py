"""Reads files of object stores and web servers (s3://, gs://, https:// …) with retries, through a cache on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import logging
import os
import posixpath
import re
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from worldsmith.files.atomic import replacing
from worldsmith.files.errors import SECRETS, UserError
from worldsmith.files.locks import lock, unlock

T = TypeVar("T")
log = logging.getLogger(__name__)

ATTEMPTS = 4
PAUSE = 1.0
"""Seconds before the second attempt to read from remote storage; doubled for each further attempt."""
CACHE_SIZE = "WORLDSMITH_CACHE_GIB"
"""Environment variable with the max size of the cache in GiB; 0 = no cache."""
DEFAULT_GIB = 50.0
MAX_FACTS = 65536
"""Number of files of which a process remembers size, version, and whether the cached copy is valid."""
LOCK_PAUSE, LOCK_WAIT = 0.02, 300.0
"""Seconds between two attempts to lock a folder of the cache, and after which a file is fetched without the lock."""
FILLED, SCANS = 7 / 8, 64
"""Fraction of the max size that remains after the cache was trimmed; number of scans while one max size is written."""
CHECKSUM = 4
"""Number of bytes at the start of a cached file that contain the CRC-32 of its content."""
PIECE = 1 << 24
"""Number of bytes that `RemoteFile` reads at a time."""
ONE_REQUEST = 50 * 2**20
"""Max size in bytes of a file that is read in one request; of a larger one, libraries request several parts at once."""
LOCAL = ("file://", "local://")
EXTRAS = {"s3": "pip install 'worldsmith[s3]'", "gs": "pip install 'worldsmith[gcs]'"}
WEB = ("http://", "https://")
READ_ONLY = (*WEB, "hf://")
"""Beginnings of addresses to which no files are written."""
VERSIONS = ("ETag", "etag", "VersionId", "generation", "blob_id", "LastModified", "Last-Modified", "last_modified",
            "modified", "modify", "mtime", "created")  # fmt: skip
"""Values of fsspec's `info` that change when a file is replaced; each storage has some of them."""
DENIED = re.compile(r"Forbidden|Access ?Denied|NoCredentials|InvalidAccessKey|SignatureDoesNotMatch")
"""Matches errors of authentication that are not a PermissionError and have no HTTP status."""


class RemoteError(OSError):
    """Error for a remote file that cannot be read; the message contains its address and the cause, but no secrets."""


class CachedFile(io.FileIO):
    """A file in the cache, whose positions are those of the content behind its checksum."""

    def seek(self, offset: int, whence: int = 0) -> int:
        return super().seek(offset + CHECKSUM * (whence == os.SEEK_SET), whence) - CHECKSUM

    def tell(self) -> int:
        return super().tell() - CHECKSUM


class RemoteFacts(NamedTuple):
    """Size and version of a remote file."""

    size: int | None
    """Size in bytes; None if the server does not state it."""
    version: str
    """Text that changes when the file is replaced: ETag, or time of the last change."""


def is_remote(path: str) -> bool:
    """Returns whether `path` is the address of a remote file or folder; a file:// address is local."""
    return "://" in path and not path.startswith(LOCAL)


def in_store(name: str) -> bool:
    """Returns whether the name of a model is an address other than that of a Hub repository (hf://)."""
    return is_remote(full_address(name)) and not name.startswith("hf:/")


def full_address(name: str) -> str:
    """Returns an address with two slashes after the scheme, of which `pathlib` makes one; other names unchanged."""
    return re.sub(r"^(?!file|local)(\w{2,}):/+", r"\1://", name).rstrip("/")


def join_address(folder: str, name: str) -> str:
    """Returns the path or address of `name` in `folder`.

    Args:
        folder: Local path, or address of a remote folder.
        name: Relative path; an absolute path or an address is returned, without file://.
    """
    name = name.removeprefix(LOCAL[0])
    if "://" in name or not is_remote(folder):
        return name if "://" in name else os.path.join(folder.removeprefix(LOCAL[0]), name)
    scheme, _, path = folder.partition("://")
    joined = posixpath.join(path, name)
    if joined == name:
        return name
    # An object store has no parent folders, so `../clips/a.mp4` would be part of the name of the object.
    return f"{scheme}://{posixpath.normpath(joined) if '..' in name.split('/') else joined}"


def open_system(address: str) -> tuple[Any, str]:
    """Returns the fsspec file system of an address, and the path of the address in it.

    The file system is looked up at each call, since fsspec keeps one per process and thread.
    """
    from fsspec.core import url_to_fs

    return url_to_fs(address)  # type: ignore[no-any-return]


def retry(read: Callable[[], T], address: str, access: Literal["read", "write"] = "read") -> T:
    """Calls `read` and returns its result; after an error of a remote storage, up to `ATTEMPTS` times.

    Args:
        read: Function that reads or writes `address`.
        address: Path or address, for messages; a local file is read once.
        access: Kind of access, for messages.

    Raises:
        FileNotFoundError: If the file does not exist.
        RemoteError: If `read` fails; at once if the access is denied or a library is missing.
    """
    attempts = ATTEMPTS if is_remote(address) else 1
    name = SECRETS.sub("", address)
    for attempt in range(1, attempts + 1):
        try:
            return read()
        except ImportError as error:
            fix = EXTRAS.get(address.partition("://")[0], "install it")
            raise RemoteError(f"{name} needs a library that is not installed: {fix} ({error})") from None
        except Exception as failure:  # each storage has errors of its own
            is_missing = isinstance(failure, FileNotFoundError)
            cause = (failure.__cause__ if is_missing and address.startswith(WEB) else None) or failure
            why = SECRETS.sub("", f"{type(cause).__name__}: {cause}")
            status = getattr(cause, "status", getattr(cause, "code", None))
            # fsspec raises FileNotFoundError from each error of a web server, such as 503 or a refused connection.
            if is_missing and (cause is failure or status in (404, 410)):
                raise FileNotFoundError(f"{name} does not exist") from None
            if isinstance(cause, PermissionError) or status in (401, 403) or DENIED.search(why):
                raise RemoteError(
                    f"{name}: the storage denies access ({why}). Expected credentials that may {access} this address: "
                    "set them for the storage's own library (s3: AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
                    "AWS_SECRET_ACCESS_KEY; gs: GOOGLE_APPLICATION_CREDENTIALS; hf: HF_TOKEN) on each machine"
                ) from None
            if attempt == attempts or "Protocol not known" in why:
                failed = "read" if access == "read" else "written"
                raise RemoteError(f"{name} cannot be {failed}: {why} ({attempt} attempts)") from None
            time.sleep(PAUSE * 2 ** (attempt - 1))
    raise AssertionError("at least one attempt")


def read_facts(address: str) -> RemoteFacts:
    """Requests the size and version of a remote file.

    Raises:
        FileNotFoundError: If the file does not exist, or is a folder.
        RemoteError: If the storage cannot be reached or denies access.
    """

    def read() -> dict[str, Any]:
        system, path = open_system(address)
        system.invalidate_cache()
        return system.info(path)  # type: ignore[no-any-return]

    info = retry(read, address)
    if info.get("type") == "directory":
        raise FileNotFoundError(f"{SECRETS.sub('', address)} is not a file")
    return RemoteFacts(info.get("size"), repr([info[name] for name in VERSIONS if info.get(name)]))


remote_facts = functools.lru_cache(maxsize=MAX_FACTS)(read_facts)
"""`read_facts`, requested once per file and process: a run expects that its files do not change."""


def file_exists(address: str) -> bool:
    """Returns whether a local or remote file exists; RemoteError if its storage cannot be reached or denies access."""
    if not is_remote(address):
        return os.path.isfile(address)
    try:
        read_facts(address)
    except FileNotFoundError:
        return False
    return True


def file_size(address: str) -> int:
    """Returns the size of a local or remote file in bytes; 0 if its server does not state it.

    Raises:
        OSError: If the file does not exist or its storage cannot be read.
    """
    return (remote_facts(address).size or 0) if is_remote(address) else os.path.getsize(address)


def read_remote(address: str, start: int = 0, size: int | None = None) -> bytes:
    """Returns the content of a remote file, or a part of it, from the cache or the storage.

    Args:
        address: Address of the file.
        start: First byte.
        size: Number of bytes; None: up to the end. Fewer bytes are returned if the file ends before.

    Raises:
        FileNotFoundError: If the file does not exist.
        RemoteError: If the file cannot be read.
        UserError: If the environment variable `WORLDSMITH_CACHE_GIB` is not a number.
    """
    facts = remote_facts(address)
    is_part = start > 0 or size is not None
    expected = facts.size
    if is_part and expected is not None:
        expected = max(0, expected - start if size is None else min(size, expected - start))
    whole = cache_entry(address, facts)
    entry = cache_entry(address, facts, start, size) if is_part else whole
    if (data := read_entry(entry, expected)) is not None:
        return data
    is_cached = is_part and (whole in _verified or read_entry(whole, facts.size) is not None)
    if is_cached and (file := open_cached(address)) is not None:
        with file:
            file.seek(start)
            return file.read(-1 if size is None else size)

    def fetch() -> bytes:
        if expected == 0:
            return b""
        system, path = open_system(address)
        known = size if size is not None or (expected or 0) > ONE_REQUEST else expected
        stop = None if known is None else start + known
        found = bytes(system.cat_file(path, start=start, end=stop) if is_part or stop else system.cat_file(path))
        if is_part and len(found) == facts.size != expected:  # from a server without range requests
            save_entry(whole, found)
            found = found[start:][:size]
        if expected is not None and len(found) != expected:
            raise OSError(f"expected {expected} bytes, received {len(found)}")
        return found

    with locked(entry.parent):  # one process fetches the file for all
        if (data := read_entry(entry, expected)) is None:
            data = retry(fetch, address)
            save_entry(entry, data)
    return data


class RemoteFile(io.RawIOBase):
    """Remote file that is read from start to end in pieces, each of them with retries and through the cache."""

    def __init__(self, address: str) -> None:
        self.address, self.position, self.piece = address, 0, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.piece:
            size = PIECE if remote_facts(self.address).size is not None else None  # unknown: maybe no range requests
            if size or not self.position:
                self.piece = memoryview(read_remote(self.address, self.position, size))
            self.position += len(self.piece)
        count = min(len(buffer), len(self.piece))
        buffer[:count], self.piece = self.piece[:count], self.piece[count:]
        return count


def open_cached(address: str) -> CachedFile | None:
    """Opens the cached copy of a remote file that this process has read before; None if it is not in the cache."""
    if (entry := cache_entry(address, remote_facts(address))) in _verified:
        with contextlib.suppress(OSError):
            os.utime(entry)
            file = CachedFile(entry)
            file.seek(0)
            return file
    return None


def cache_folder(name: str = "remote") -> Path:
    """Returns the folder `worldsmith/NAME` in the user's cache folder (XDG); by default that of remote files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "worldsmith" / name


def cache_limit() -> int:
    """Returns the max size of the cache in bytes. Raises UserError if its environment variable is not a number >= 0."""
    text = os.environ.get(CACHE_SIZE) or str(DEFAULT_GIB)
    with contextlib.suppress(ValueError, OverflowError):
        if (limit := int(float(text) * 2**30)) >= 0:
            return limit
    raise UserError(f"{CACHE_SIZE} is {text!r}: expected the max size of the cache in GiB, such as 50; 0 = no cache")


def cache_entry(address: str, facts: RemoteFacts, start: int = 0, size: int | None = None) -> Path:
    """Returns the path of the cached copy of a part of a file, by its address, version and range."""
    key = hashlib.sha256(repr((address, facts, start, size)).encode()).hexdigest()
    return cache_folder() / key[:2] / key


def read_entry(entry: Path, size: int | None) -> bytes | None:
    """Returns the content of a cached file and marks it as used; None if it is missing or damaged.

    Args:
        entry: Path from `cache_entry`.
        size: Expected number of bytes of the content; None: not known.
    """
    try:
        stored = entry.read_bytes()
        data = stored[CHECKSUM:]
        if size not in (None, len(data)) or stored[:CHECKSUM] != crc_bytes(data):
            entry.unlink()
            return None
        os.utime(entry)
    except OSError:
        return None
    mark_verified(entry)
    return data


def save_entry(entry: Path, data: bytes) -> None:
    """Writes a file to the cache and trims the cache; best effort: the first error of the process is logged."""
    limit = cache_limit()
    if len(data) + CHECKSUM > limit:
        return
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry, durable=False) as aside, open(aside, "wb") as file:
            file.writelines((crc_bytes(data), data))  # a copy of the content could be large
        mark_verified(entry)
        count_written(len(data) + CHECKSUM, limit)
    except OSError as error:
        if error.errno not in _logged:
            _logged.append(error.errno)
            log.warning("the cache of remote files cannot be written, so they are read again in each epoch: %s", error)


def mark_verified(entry: Path) -> None:
    if len(_verified) >= MAX_FACTS:
        _verified.clear()
    _verified.add(entry)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context manager that has the lock of a folder of the cache; best effort: an error means that there is no lock."""
    handle = None
    with contextlib.suppress(OSError):
        if cache_limit():
            folder.mkdir(parents=True, exist_ok=True)
            until = time.monotonic() + LOCK_WAIT
            while (handle := lock(folder)) is None and time.monotonic() < until:
                time.sleep(LOCK_PAUSE)
    try:
        yield
    finally:
        if handle is not None:
            unlock(handle)


def crc_bytes(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(CHECKSUM, "big")


_logged: list[int | None] = []
"""Warnings of this process: values of errno with which it has failed to write to the cache; 0: the cache is full."""
_verified: set[Path] = set()
"""Cached files whose checksum this process has compared."""
_written: list[int] = []
"""Number of bytes that this process has cached since it trimmed the cache, as the only item; empty: never trimmed."""


def count_written(size: int, limit: int) -> None:
    """Adds a written file to the bytes that this process has cached; from time to time, trims the cache to its limit.

    The cache is trimmed after the first file of this process, and then whenever `limit / SCANS` bytes were written.

    Args:
        size: Number of bytes of the file.
        limit: Max size of the cache in bytes.
    """
    if _written and sum(_written) + size < limit / SCANS:
        _written[:] = [sum(_written) + size]
        return
    _written[:] = [0]
    trim(cache_folder(), limit)


def trim(folder: Path, limit: int) -> None:
    """Removes the files of the cache that were not used for the longest time if the cache is larger than `limit` bytes.

    Only one process at a time does this; another process returns at once.
    """
    if (handle := lock(folder)) is None:
        return
    try:
        entries = []
        for path in folder.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                entries.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        if total <= limit:
            return
        for _, size, path in sorted(entries):
            if total <= limit * FILLED:
                break
            path.unlink(missing_ok=True)
            total -= size
            if path in _verified and 0 not in _logged:
                _logged.append(0)
                why = "files that this process has read were removed, and are fetched again when they are needed"
                log.warning("the cache of remote files is full: %s. %s sets its size in GiB", why, CACHE_SIZE)
    finally:
        unlock(handle)
