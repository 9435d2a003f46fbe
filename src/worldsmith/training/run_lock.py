"""A run folder belongs to one run at a time, and all processes of the run see the same one."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import secrets
import shutil
import socket
import time
from pathlib import Path

from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.config.errors import UserError
from worldsmith.distributed.world import World
from worldsmith.files.locks import LOCK_FILE, holder, try_lock
from worldsmith.files.writable import require_writable

TRIES = 5
"""How often a process looks for what process 0 has written: network file systems may show it a moment later."""
PAUSE = 1.0
"""Seconds between two of them."""


class RunLock:
    """Holds a run folder, which it makes, until `release` or the end of process 0.

    The lock is a POSIX record lock: it works over NFS, is not inherited by forked processes, and ends with its process,
    however that ends. All ranks make it together. Raises UserError, on all of them, when another run holds the folder,
    when it cannot be written, or when a rank does not see the folder of process 0.
    """

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world = folder, world
        self._handle: int | None = None
        self._made: list[Path] = []
        problem, token = None, secrets.token_hex(8)
        if world.is_main:
            try:
                require_writable(folder, what="the run folder ")
                made = [place for place in (folder, *folder.absolute().parents) if not place.exists()]
                self._handle = take(folder, token)
                self._made = made  # and not by another start, which has the folder then
            except UserError as error:
                problem = str(error)
        problem, token, host = world.broadcast((problem, token, socket.gethostname()))
        if problem is None and not world.is_main:
            problem = find_difference(folder, token, rank=world.rank, host=host)
        problems = [found for found in world.gather(problem) if found is not None]
        if problems:
            self.withdraw()
            raise UserError(problems[0])

    def release(self) -> None:
        """Gives the folder up."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def require_held(self) -> None:
        """Raises SaveError, on all ranks, when the folder is no longer the one that was locked: moved, removed, or
        with another lock in it, so that another run may have it. What is there then is not this run's."""
        lost = self.world.broadcast(self._lost() if self.world.is_main else None)
        if lost is not None:
            raise SaveError(
                f"the run folder {self.folder} {lost} while the run used it: nothing more is written. What it held is "
                "wherever it was moved; put it back and start again to go on from its last checkpoint"
            )

    def _lost(self) -> str | None:
        """What has happened to the folder, in words; None while it is this lock's."""
        if self._handle is None:
            return None
        try:
            same = os.path.samestat(os.fstat(self._handle), os.stat(self.folder / LOCK_FILE))
        except OSError:
            return "has lost its lock file" if self.folder.is_dir() else "was moved or removed"
        return None if same else "was replaced, or its lock file was,"

    def withdraw(self) -> None:
        """Gives the folder up and removes it, with the folders above, if it was made for this lock."""
        is_own = self._handle is not None and self._lost() is None
        for place in self._made[:1] if is_own else ():
            shutil.rmtree(place, ignore_errors=True)
        self.release()
        for place in self._made[1:] if is_own else ():
            with contextlib.suppress(OSError):  # somebody else has put something there
                place.rmdir()


def take(folder: Path, token: str) -> int:
    """Locks the folder and returns the handle that keeps it so. Raises UserError when another process has it."""
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    if not try_lock(handle, fcntl.LOCK_EX, path):
        os.close(handle)
        raise UserError(
            f"the run folder {folder} is in use: {holder(path)}. Wait for its end, stop it "
            f"(`touch {folder}/STOP`), or give this run another job.name"
        )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {"host": socket.gethostname(), "pid": os.getpid(), "started_at": now, "token": token}
    os.ftruncate(handle, 0)
    os.pwrite(handle, (json.dumps(about) + "\n").encode(), 0)
    os.fsync(handle)
    return handle


def find_difference(folder: Path, token: str, *, rank: int, host: str) -> str | None:
    """Why this process cannot work in the folder in which process 0, on `host`, has written `token`."""
    for attempt in range(TRIES):
        time.sleep(PAUSE if attempt else 0.0)
        try:
            found = json.loads((folder / LOCK_FILE).read_text(encoding="utf-8"))["token"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if found == token:
            break
    else:
        return (
            f"process {rank} on {socket.gethostname()} does not see what process 0 on {host} writes to the run folder "
            f"{folder.absolute()}: it must be on storage that all nodes share. Set WORLDSMITH_OUTPUT_ROOT to such a "
            "place, the same on all nodes"
        )
    try:
        require_writable(folder, what="the run folder ")
    except UserError as error:
        return f"process {rank} on {socket.gethostname()}: {error}"
    return None
