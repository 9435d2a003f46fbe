"""Images and videos that lie in an archive: unpacked once, into a folder next to it."""

from __future__ import annotations

import hashlib
import logging
import os
import tarfile
import time
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from worldsmith.data.content_mark import content_mark
from worldsmith.data.stream.errors import DataError
from worldsmith.files.atomic import folder_aside, publish_folder

log = logging.getLogger(__name__)

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
SUFFIXES = (*TARS, ".zip")
USUAL = tuple(f"{stem}{suffix}" for stem in ("videos", "images") for suffix in (".tar.gz", ".tgz", ".tar", ".zip"))
"""What an archive is called in the folder of a data set whose media are packed."""
WAIT = 0.5
"""Seconds between two looks while another process unpacks."""


def is_archive(path: str | Path) -> bool:
    return str(path).lower().endswith(SUFFIXES)


def archives_in(folder: Path) -> list[Path]:
    """The archives of media in the folder of a data set."""
    return [folder / name for name in USUAL if (folder / name).is_file()]


def unpacked(archive: Path) -> Path:
    """The folder with the files of an archive, which is unpacked when it is not there yet.

    It lies next to the archive, or below the user's cache where nothing can be written there, and is named by the
    archive's content. Several processes may call this at once: one of them unpacks, and the others wait.

    Raises:
        DataError: The archive is missing or damaged, or a member would be written outside the folder.
    """
    mark = content_mark(archive)
    if not mark:
        raise DataError(f"the archive {archive} cannot be read: expected a file. Give its path, or the unpacked folder")
    target = home_of(archive) / f".unpacked_{archive.name}.{mark}"
    while not target.is_dir():
        try:
            with folder_aside(target) as aside:
                log.warning("unpacking %s into %s, once", archive, target)
                count = unpack(archive, aside)
                publish_folder(aside, target)
                log.warning("unpacked %d files of %s", count, archive)
        except FileExistsError:
            time.sleep(WAIT)
    return target


def home_of(archive: Path) -> Path:
    """The folder in which the archive is unpacked."""
    parent = archive.absolute().parent
    if os.access(parent, os.W_OK):
        return parent
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "worldsmith" / "unpacked"
    return cache / hashlib.sha256(str(parent).encode()).hexdigest()[:12]


def unpack(archive: Path, folder: Path) -> int:
    """Writes the members into `folder`; returns the number of files. Raises DataError."""
    try:
        if archive.name.lower().endswith(".zip"):
            with zipfile.ZipFile(archive) as packed:
                outside = [name for name in packed.namelist() if leaves(name)]
                if outside:
                    raise DataError(f"{archive}: the member '{outside[0]}' lies outside the archive's folder")
                packed.extractall(folder)
        else:
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
    except tarfile.FilterError as error:
        raise DataError(f"{archive}: {error}. Nothing was unpacked") from None
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            words = error.strerror or error
            raise DataError(f"{archive} cannot be unpacked into {folder.parent}: {words}") from None
        raise DataError(f"{archive} is damaged and cannot be unpacked: {error}. Copy or download it anew") from None
    return sum(len(files) for _, _, files in os.walk(folder))


def leaves(name: str) -> bool:
    """Whether the name of a member leads out of the folder that it is written into."""
    parts = name.replace("\\", "/").split("/")
    return name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]


def media_folders(root: Path) -> Sequence[Path]:
    """The folders of the archives that `root` is or holds, unpacked. Raises DataError."""
    return [unpacked(archive) for archive in ([root] if is_archive(root) else archives_in(root))]
