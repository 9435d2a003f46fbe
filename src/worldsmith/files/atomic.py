"""Files and folders that appear complete or not at all, also when the power goes."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worldsmith.files.locks import lock

logger = logging.getLogger(__name__)

SAVING = ".saving_"
REMOVING = ".removing_"


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
    """Context manager: yields a temporary path that atomically replaces `path` at the end; removed after an error.

    Args:
        path: File to replace. An OSError names it.
        within: Folder of the temporary file, on the same file system; None: that of `path`.
        durable: Flush to disk; False: the file can be lost or empty after a power failure.
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
    """Replaces `path` by `text`, see `replacing`."""
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")


@contextmanager
def folder_aside(target: Path) -> Iterator[Path]:
    """Context manager: yields an empty temporary folder next to `target`, for `publish_folder`; removes it at the end.

    Remains of interrupted processes are removed first.

    Raises:
        FileExistsError: If another process is writing to it.
        OSError: With ENOSPC for any exception caused by a full disk.
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
        os.close(handle)


def claim_folder(aside: Path) -> int | None:
    """Creates or empties the temporary folder `aside` and locks it; returns the lock, or None if another process has
    it."""
    try:
        if aside.exists():
            left = lock(aside)
            if left is None:
                return None
            if is_open_as(left, aside):
                shutil.rmtree(aside)
            os.close(left)
        aside.mkdir(parents=True)
        handle = lock(aside)
    except (FileExistsError, FileNotFoundError):  # another process has made, published or removed it just now
        return None
    if handle is not None and not is_open_as(handle, aside):
        os.close(handle)
        return None
    return handle


def is_open_as(handle: int, path: Path) -> bool:
    """Returns whether what is at `path` now is the file or folder that is open."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def is_disk_full(error: BaseException | None) -> bool:
    """Returns whether a full disk, or quota, is behind an error; libraries that are not Python have only words for
    it."""
    full = (errno.ENOSPC, errno.EDQUOT)
    while error is not None:
        if (isinstance(error, OSError) and error.errno in full) or any(os.strerror(n) in str(error) for n in full):
            return True
        error = error.__cause__ or error.__context__
    return False


def restore_name(target: Path) -> None:
    """Restores a folder whose replacement was interrupted by a kill."""
    for old in target.parent.glob(f"{REMOVING}{target.name}.*"):
        if not target.exists():
            os.replace(old, target)
        else:
            discard(old)


def publish_folder(aside: Path, target: Path, *, replace: bool = True) -> None:
    """Publishes the finished folder `aside` as `target` by an atomic rename.

    Args:
        aside: Temporary folder on the same file system.
        target: Final path.
        replace: Whether an existing `target` may be replaced.

    Raises:
        FileExistsError: If `target` is not empty and `replace` is False.
    """
    sync_tree(aside)
    if target.exists() and any(target.iterdir()):
        if not replace:
            raise FileExistsError(f"{target} has been written by another process meanwhile, and is kept")
        old = hide(target)
        os.replace(aside, target)
        sync_folder(target.parent)
        discard(old)
        return
    os.replace(aside, target)
    sync_folder(target.parent)


def remove_folder(folder: Path) -> None:
    """Removes `folder`. It loses its name first: half a folder is never seen under it.

    What cannot be removed is said and left: the space is lost, and nothing else.
    """
    try:
        discard(hide(folder))
    except OSError as error:
        logger.warning("%s cannot be removed and stays: %s", folder, error)


def discard(path: Path) -> bool:
    """Removes a file, a link or a folder; False when that cannot be, which is logged."""
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
    """Renames `folder` to a hidden name before its removal; returns the new path."""
    hidden = folder.with_name(f"{REMOVING}{folder.name}.{os.getpid()}")
    os.replace(folder, hidden)
    sync_folder(folder.parent)
    return hidden


def remove_leftovers(parent: Path) -> list[str]:
    """Removes what an interrupted save or removal left in `parent`; returns the names."""
    names = sorted(entry.name for entry in os.scandir(parent) if entry.name.startswith((SAVING, REMOVING)))
    # A folder that is not wholly removed must not keep its name: the next save of that step needs it.
    return [name for name in names if discard(hide(parent / name) if name.startswith(SAVING) else parent / name)]
