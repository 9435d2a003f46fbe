"""Reads and writes complete files on this machine, or behind a URL such as s3://bucket/name."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worldsmith.files.atomic import replacing
from worldsmith.files.errors import UserError
from worldsmith.files.remote import is_remote, open_system

SCHEME = "://"


def local(location: str) -> Path:
    """Returns a local path or file:// URL as a Path."""
    return Path(location.removeprefix("file://")).expanduser()


def join(root: str, name: str) -> str:
    """Returns the path or URL of `name` below `root`; an absolute path or URL `name` is returned unchanged."""
    if SCHEME in name or name.startswith("/"):
        return name
    return posixpath.join(root, name) if is_remote(root) else str(local(root) / name)


def read_bytes(location: str) -> bytes:
    """Returns the content of a file at a path or URL. Raises UserError, which names the file, if it cannot be read."""
    with explained(location):
        if not is_remote(location):
            return local(location).read_bytes()
        files, path = open_system(location)
        return files.cat_file(path)


def write_bytes(location: str, data: bytes) -> None:
    """Writes a file at a path or URL, and its parent folders; local files atomically. Raises UserError on failure."""
    with explained(location):
        if is_remote(location):
            files, path = open_system(location)
            files.makedirs(posixpath.dirname(path), exist_ok=True)
            files.pipe_file(path, data)
            return
        local(location).parent.mkdir(parents=True, exist_ok=True)
        with replacing(local(location)) as aside:
            aside.write_bytes(data)


def exists(location: str) -> bool:
    """Returns whether a file or folder exists at a path or URL. Raises UserError if the location is not reachable."""
    with explained(location):
        if not is_remote(location):
            return local(location).exists()
        files, path = open_system(location)
        return bool(files.exists(path))


def find(root: str, name: str) -> list[str]:
    """Returns the sorted paths or URLs of files called `name` at any depth in `root`, or `root` if it is a file."""
    with explained(root):
        if not is_remote(root):
            location = local(root)
            return [str(location)] if location.is_file() else sorted(map(str, location.rglob(name)))
        files, path = open_system(root)
        if files.isfile(path):
            return [root]
        return sorted(files.unstrip_protocol(file) for file in files.find(path) if posixpath.basename(file) == name)


@contextmanager
def explained(location: str) -> Iterator[None]:
    """Context manager: converts errors of reading or writing `location` to a UserError that names this path or URL."""
    try:
        yield
    except ImportError as error:
        raise UserError(f"{location}: this type of URL needs another Python package: {error}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise UserError(f"{location}: no such file or folder") from None
        raise UserError(f"{location}: {error}") from None
    except Exception as error:  # the errors of a storage service have no common class
        if not is_remote(location):
            raise
        raise UserError(f"{location} cannot be reached: {type(error).__name__}: {error}") from None
