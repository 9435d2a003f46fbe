"""One run at a time in a run folder: the lock, who holds it, and when it is free again."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.config.errors import UserError
from worldsmith.distributed.world import World
from worldsmith.files.locks import in_use
from worldsmith.training import run_folder
from worldsmith.training.run_folder import RunLock, lock_folder

HOLD = """
import os, sys, time
from pathlib import Path
from worldsmith.distributed.world import World
from worldsmith.training.run_folder import RunLock

lock = RunLock(Path(sys.argv[1]), World())
if os.fork() == 0:  # like a worker of the data loader, which may outlive a killed run for a moment
    time.sleep(600)
    os._exit(0)
print("held", flush=True)
time.sleep(600)
"""


@contextmanager
def holding(folder: Path) -> Iterator[subprocess.Popen]:
    """Another process that holds `folder`, and has a child."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_a_second_run_is_told_who_is_there_and_a_killed_one_leaves_the_folder_free(tmp_path: Path) -> None:
    """Also while a child of the killed process lives on."""
    folder = tmp_path / "run"
    assert in_use(folder) is None
    with holding(folder) as other:
        names = f"process {other.pid} on {socket.gethostname()} has been training in it since 20"
        with pytest.raises(UserError, match=r"is in use: .*touch .*STOP.*job\.name") as refused:
            RunLock(folder, World())
        assert names in str(refused.value)
        assert refused.value.code == 106
        assert names in str(in_use(folder))
        with pytest.raises(UserError, match="is in use"):  # looking has changed nothing
            RunLock(folder, World())
        other.kill()
        other.wait()
        assert in_use(folder) is None
        RunLock(folder, World()).release()


def test_a_released_folder_can_be_taken_again(tmp_path: Path) -> None:
    lock = RunLock(tmp_path, World())
    lock.release()
    lock.release()
    with holding(tmp_path):
        pass
    RunLock(tmp_path, World()).release()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_file_system_without_locks_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lockf(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    RunLock(tmp_path, World()).release()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "cannot be locked (No locks available): a second run" in warning


def test_a_folder_that_cannot_be_written_is_the_users_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a file, and on a full disk, where an empty file could still be made."""
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written: Not a directory"):
        RunLock(tmp_path / "file" / "run", World())

    def fsync(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        RunLock(tmp_path / "run", World())


@pytest.mark.parametrize("harm", ["moved", "removed", "replaced", "lock_removed", "lock_replaced"])
def test_a_folder_that_is_no_longer_the_runs_ends_it_before_the_next_save(tmp_path: Path, harm: str) -> None:
    folder = tmp_path / "run"
    lock = RunLock(folder, World())
    lock.require_held()
    if harm == "moved":
        folder.rename(tmp_path / "elsewhere")
    elif harm == "removed":
        shutil.rmtree(folder)
    elif harm == "replaced":
        folder.rename(tmp_path / "elsewhere")
        RunLock(folder, World())
    else:
        (folder / ".lock").unlink()
        if harm == "lock_replaced":
            RunLock(folder, World())
    with pytest.raises(SaveError, match=r"during the run: no more files are written"):
        lock.require_held()
    before = sorted(tmp_path.rglob("*"))
    lock.withdraw()  # as a start that fails does
    assert sorted(tmp_path.rglob("*")) == before


def test_a_refused_start_removes_nothing_of_the_one_that_was_quicker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found no folder there."""
    folder = tmp_path / "group" / "run"
    others = []

    def take_second(place: Path, token: str) -> int:
        others.append(holding(place))
        others[0].__enter__()
        (place / "metrics.jsonl").write_text("{}\n")
        return lock_folder(place, token)

    monkeypatch.setattr(run_folder, "lock_folder", take_second)
    with pytest.raises(UserError, match="is in use"):
        RunLock(folder, World())
    assert (folder / "metrics.jsonl").exists()
    others[0].__exit__(None, None, None)
