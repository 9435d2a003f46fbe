"""Atomic writing of files and folders: they appear complete or not at all, also after a power failure."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from worldsmith.files.locks import lock, unlock

logger = logging.getLogger(__name__)
T = TypeVar("T")

SAVING = ".saving_"
REMOVING = ".removing_"
LOCK_PAUSE = 0.5
"""Seconds between two attempts to find a folder that another process of this machine writes."""


def sync_folder(folder: Path) -> None:
    """Flushes the directory entries of `folder` to disk (fsync)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Flushes the content of a file to disk (fsync)."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_tree(folder: Path) -> None:
    """Flushes all files and directories under `folder` to disk (fsync)."""
    for root, _, files in os.walk(folder):
        for name in files:
            sync_file(Path(root, name))
        sync_folder(Path(root))


@contextmanager
def replacing(path: Path, *, within: Path | None = None, durable: bool = True) -> Iterator[Path]:
    """Context manager: yields a temporary path that atomically replaces `path` at the end.

    The block has to create the temporary file. After an exception the temporary file is removed and `path` is
    unchanged.

    Args:
        path: File to replace, which need not exist.
        within: Folder of the temporary file, on the same file system; None: the folder of `path`.
        durable: Flush to disk; False: the file can be lost or empty after a power failure.

    Yields:
        Path of the temporary file.

    Raises:
        OSError: If the file cannot be written; the error names `path`, not the temporary path.
    """
    aside = (within or path.parent) / f"{SAVING}{path.name}.{uuid.uuid4().hex}"
    try:
        yield aside
        if durable:
            sync_file(aside)
        os.replace(aside, path)
    except BaseException as error:
        aside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(aside)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    if durable:
        sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Writes `text` in UTF-8 to the file `path` by an atomic replacement and flushes it to disk.

    Args:
        path: File to create or replace.
        text: New content.
    """
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")


@contextmanager
def locked_temporary_folder(target: Path) -> Iterator[Path]:
    """Context manager: yields an empty temporary folder next to `target`, for the new content of `target`.

    The block passes the temporary folder to `publish_folder`; otherwise it is removed at the end.
    A temporary folder that an interrupted process has left for the same `target` is removed first. The folder is
    locked, so that only one process at a time prepares `target`.

    Args:
        target: Final path of the folder, which need not exist. Missing parent folders are created.

    Yields:
        Path of the temporary folder.

    Raises:
        FileExistsError: If another process is preparing `target`.
        OSError: With ENOSPC, if a full disk caused an exception in the block; it replaces that exception.
    """
    aside = target.with_name(f"{SAVING}{target.name}")
    restore_name(target)
    handle = claim_folder(aside)
    if handle is None:
        raise FileExistsError(f"{target} is being written by another process; wait for it, or choose another path")
    try:
        yield aside
    except Exception as error:
        if is_disk_full(error):
            advice = "free disk space, or choose another path; existing files are unchanged"
            raise OSError(errno.ENOSPC, f"there is no space left on the disk ({advice})", str(target)) from error
        raise
    finally:
        if is_open_as(handle, aside):  # after publishing, it may be another process's
            shutil.rmtree(aside)
        unlock(handle)


def build_once(target: Path, find: Callable[[], T | None], build: Callable[[Path], None]) -> T:
    """Writes a folder that several processes need, in one of them, while the others wait; returns the result of `find`.

    Args:
        target: Path of the folder.
        find: Returns the content of the folder, or None if it is missing or outdated.
        build: Writes the content into the temporary folder that is its argument.
    """
    is_waiting = False
    while (found := find()) is None:
        try:
            with locked_temporary_folder(target) as aside:
                if (found := find()) is not None:  # another process has just written it
                    break
                build(aside)
                publish_folder(aside, target)
        except FileExistsError:
            if not is_waiting:
                logger.info("waiting for the process that writes %s", target)
            is_waiting = True
            time.sleep(LOCK_PAUSE)
    return found


def claim_folder(folder: Path) -> int | None:
    """Creates a folder, or empties it, and locks it.

    Returns the file descriptor that keeps the lock; None if another process has the lock.
    """
    try:
        if folder.exists():
            left = lock(folder)
            if left is None:
                return None
            if is_open_as(left, folder):
                shutil.rmtree(folder)
            os.close(left)
        folder.mkdir(parents=True)
        handle = lock(folder)
    except (FileExistsError, FileNotFoundError):  # another process has made, published or removed it just now
        return None
    if handle is not None and not is_open_as(handle, folder):
        os.close(handle)
        return None
    return handle


def is_open_as(handle: int, path: Path) -> bool:
    """Returns whether `path` still is the file or folder that the file descriptor `handle` has open."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def is_disk_full(error: BaseException | None) -> bool:
    """Returns whether a full disk or quota caused `error`; also checks its causes and the text of their messages."""
    full = (errno.ENOSPC, errno.EDQUOT)
    while error is not None:
        if (isinstance(error, OSError) and error.errno in full) or any(os.strerror(n) in str(error) for n in full):
            return True
        error = error.__cause__ or error.__context__
    return False


def restore_name(target: Path) -> None:
    """Restores the folder `target` from its hidden name if a process was killed while it replaced the folder.

    If `target` exists, folders with the hidden name are deleted.
    """
    for old in target.parent.glob(f"{REMOVING}{target.name}.*"):
        if not target.exists():
            os.replace(old, target)
        else:
            discard(old)


def publish_folder(aside: Path, target: Path, *, replace: bool = True) -> None:
    """Flushes the finished folder `aside` to disk and publishes it as `target` by an atomic rename.

    Args:
        aside: Temporary folder on the same file system, usually from `locked_temporary_folder`.
        target: Final path.
        replace: Whether a `target` that contains files may be replaced. An empty folder is always replaced.

    Raises:
        FileExistsError: If `target` contains files and `replace` is False.
    """
    sync_tree(aside)
    if target.exists() and any(target.iterdir()):
        if not replace:
            raise FileExistsError(f"{target} has been written by another process in the meantime and is not replaced")
        old = hide(target)
        os.replace(aside, target)
        sync_folder(target.parent)
        discard(old)
        return
    os.replace(aside, target)
    sync_folder(target.parent)


def remove_folder(folder: Path) -> None:
    """Renames `folder` to a hidden name and then deletes it, so that an incomplete folder never has its name.

    Best effort: an error is logged as a warning, and the disk space stays in use.
    """
    try:
        discard(hide(folder))
    except OSError as error:
        logger.warning("%s cannot be removed and stays: %s", folder, error)


def discard(path: Path) -> bool:
    """Deletes a file, link or folder; returns True on success, else logs a warning and returns False."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        logger.warning("%s cannot be removed, delete it yourself: %s", path, error)
        return False
    return True


def hide(folder: Path) -> Path:
    """Renames `folder` to a hidden name before its removal and returns the new path."""
    hidden = folder.with_name(f"{REMOVING}{folder.name}.{os.getpid()}")
    os.replace(folder, hidden)
    sync_folder(folder.parent)
    return hidden


def remove_leftovers(parent: Path) -> list[str]:
    """Deletes the temporary files and folders that interrupted saves and removals left in `parent`.

    Args:
        parent: Existing folder; its subfolders are not searched.

    Returns:
        Names of the removed entries, sorted. An entry that cannot be removed is logged and not listed.
    """
    names = sorted(entry.name for entry in os.scandir(parent) if entry.name.startswith((SAVING, REMOVING)))
    # A folder that is only partly removed must not keep its name: the next save of that step needs it.
    return [name for name in names if discard(hide(parent / name) if name.startswith(SAVING) else parent / name)]
