"""Archives of images and videos, which are unpacked once, into a folder next to them."""

from __future__ import annotations

import hashlib
import json
import logging
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from worldsmith.config.errors import describe_error
from worldsmith.data.content_fingerprint import file_fingerprint
from worldsmith.data.stream.errors import DataError
from worldsmith.files.atomic import build_once
from worldsmith.files.remote import cache_folder, file_exists, is_remote, join_address
from worldsmith.files.remote_folder import fetch_folder

log = logging.getLogger(__name__)

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
SUFFIXES = (*TARS, ".zip")
USUAL = tuple(f"{stem}{suffix}" for stem in ("videos", "images") for suffix in (".tar.gz", ".tgz", ".tar", ".zip"))
"""File names by which media archives in a dataset folder are found."""
DAMAGE = ".damage.jsonl"
"""File in an unpacked folder that lists the members of its archive that could not be unpacked."""
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, struct.error),
    *(ValueError, OverflowError, RuntimeError),  # the last one: an encrypted member, or an unknown compression
)
"""Exceptions that the archive libraries raise for a damaged archive, in addition to OSError without an errno."""
BAD_HEADERS = ("InvalidHeaderError", "TruncatedHeaderError")
"""Names of the `tarfile` exceptions for damaged headers; other header exceptions mean the end of the archive."""


class DamagedArchiveError(DataError):
    """Error for an archive that is damaged so that no file of it can be extracted."""


class CheckedMember(tarfile.TarInfo):
    """Member of a `CheckedTar` that sets `fault` of its archive if its header is damaged."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if isinstance(archive, CheckedTar) and type(error).__name__ in BAD_HEADERS:
                archive.fault = f"a damaged header: {error}"
            raise


class CheckedTar(tarfile.TarFile):
    """Tar archive that records a damaged header in `fault`; `TarFile` would treat it as the end of the archive."""

    tarinfo = CheckedMember
    fault = ""
    """Description of the damaged header; "" = no header is damaged."""


def is_archive(path: str | Path) -> bool:
    """Returns whether a path has the suffix of a supported archive."""
    return str(path).lower().endswith(SUFFIXES)


def unpacked(archive: Path) -> Path:
    """Unpacks an archive, unless this has been done before, and returns the folder with its files.

    The folder is next to the archive, or in the user's cache if that location is not writable; its name contains a
    fingerprint of the archive. Several processes may call this at once: one of them unpacks, and the others wait.
    Damaged members are skipped, listed in the file `DAMAGE` of the folder, and reported at each call.

    Raises:
        DataError: If the archive is missing, a member would be written outside of the folder, or the disk is full.
        DamagedArchiveError: If no file of the archive can be unpacked.
    """
    mark = file_fingerprint(archive)
    if not mark:
        raise DataError(f"the archive {archive} cannot be read: expected a file. Use its path, or the unpacked folder")
    target = unpack_location(archive) / f".unpacked_{archive.name}.{mark}"

    def build(aside: Path) -> None:
        log.warning("unpacking %s into %s, once", archive, target)
        log.warning("unpacked %d files of %s", unpack(archive, aside), archive)

    build_once(target, lambda: target.is_dir() or None, build)
    report_damage(archive, target)
    return target


def report_damage(archive: Path, folder: Path) -> None:
    """Logs a warning if the file `DAMAGE` in `folder` lists members of `archive` that could not be unpacked."""
    listing = folder / DAMAGE
    if not listing.is_file():
        return
    entries = [json.loads(line) for line in listing.read_text(encoding="utf-8").splitlines()]
    log.warning(
        "the archive %s is damaged: %d error%s, unpacked files: %d; first error: %s: %s; listed in %s. Copy or "
        "download the archive again",
        *(archive, len(entries), "s" * (len(entries) != 1), count_files(folder) - 1),
        *(entries[0]["member"], entries[0]["why"], listing),
    )


def unpack_location(archive: Path) -> Path:
    """Returns the folder in which the unpacked folder of an archive is created: next to it, or in the user's cache."""
    parent = archive.absolute().parent
    if os.access(parent, os.W_OK):
        return parent
    return cache_folder("unpacked") / hashlib.sha256(str(parent).encode()).hexdigest()[:12]


def unpack(archive: Path, folder: Path) -> int:
    """Extracts an archive into `folder`, lists damaged members in its file `DAMAGE`, and returns the number of files.

    Raises:
        DataError: If the archive cannot be unpacked; DamagedArchiveError if the reason is damage.
    """
    is_zip = archive.name.lower().endswith(".zip")
    try:
        damaged = list((unpack_zip if is_zip else unpack_tar)(archive, folder))
    except tarfile.FilterError as error:
        raise DataError(f"{archive}: {error}. No file was unpacked") from None
    except OSError as error:
        if not is_damage(error):
            words = error.strerror or error
            raise DataError(f"{archive} cannot be unpacked into {folder.parent}: {words}") from None
        raise damaged_archive(archive, error) from None
    except DataError:
        raise
    except DAMAGED as error:
        raise damaged_archive(archive, error) from None
    count = count_files(folder)
    if damaged and not count:
        raise damaged_archive(archive, damaged[0][1])
    if damaged:
        lines = [json.dumps({"member": member, "why": why}) + "\n" for member, why in damaged]
        (folder / DAMAGE).write_text("".join(lines), encoding="utf-8")
    return count


def unpack_zip(archive: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Extracts a zip archive into `folder`; yields (name, reason) of each member that is damaged."""
    with zipfile.ZipFile(archive) as packed:
        outside = [name for name in packed.namelist() if escapes_folder(name)]
        if outside:
            raise DataError(f"{archive}: the member '{outside[0]}' would be written outside of the archive's folder")
        for member in packed.infolist():
            try:
                packed.extract(member, folder)
            except Exception as error:
                if not is_damage(error):
                    raise
                (folder / member.filename).unlink(missing_ok=True)
                yield member.filename, describe_error(error)


def unpack_tar(archive: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Extracts a tar archive into `folder` up to the first damaged member; yields (name, reason) of that member."""
    with CheckedTar.open(archive) as packed:
        name = ""
        try:
            while (member := packed.next()) is not None:
                name = member.name
                packed.extract(member, folder, filter="data")
                name = f"after {member.name}"
            if packed.fault:
                yield name, packed.fault
        except Exception as error:
            if not is_damage(error):
                raise
            if not name.startswith("after "):
                (folder / name.lstrip("/")).unlink(missing_ok=True)
            yield name, describe_error(error)


def is_damage(error: Exception) -> bool:
    """Returns whether an exception means a damaged archive, and not a problem of this machine or an unsafe member."""
    if isinstance(error, OSError):
        return error.errno is None
    return isinstance(error, DAMAGED) and not isinstance(error, tarfile.FilterError)


def damaged_archive(archive: Path, why: object) -> DamagedArchiveError:
    return DamagedArchiveError(f"{archive} is damaged and cannot be unpacked: {why}. Copy or download it again")


def count_files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


def escapes_folder(name: str) -> bool:
    """Returns whether an archive member of this name would be written outside of the folder it is extracted to."""
    parts = name.replace("\\", "/").split("/")
    return name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]


def media_folders(root: str) -> Sequence[Path]:
    """Unpacks the media archives of a dataset and returns the folders with their files.

    Archives that are completely damaged are skipped with a warning, unless all archives are.

    Args:
        root: Path or address of an archive, or of a dataset folder that contains archives. From a store, archives are
            downloaded.

    Raises:
        DataError: If an archive is missing, cannot be unpacked for another reason than damage, or if all are damaged.
        RemoteError: If the storage cannot be reached or denies access.
        UserError: If the disk has too little free space for an archive of a store.
    """
    folders: list[Path] = []
    damaged: list[DamagedArchiveError] = []
    archives = [root] if is_archive(root) else list(filter(file_exists, (join_address(root, name) for name in USUAL)))
    for archive in archives:
        try:
            local = fetch_folder(archive, field="media_root") if is_remote(archive) else None
            folders.append(unpacked(local or Path(archive)))
        except FileNotFoundError as error:
            raise DataError(str(error)) from None
        except DamagedArchiveError as error:
            damaged.append(error)
    if damaged and not folders:
        raise damaged[0]
    for left_out in damaged:
        log.warning("the run continues without this archive: %s", left_out)
    return folders
