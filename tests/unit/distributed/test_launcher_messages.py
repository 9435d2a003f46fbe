"""What processes tell the launcher that has started them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from worldsmith.cli.main import fail
from worldsmith.distributed.launcher_messages import LAUNCHER, LauncherServer, launcher_pid, report_exit_code


def in_a_fork(work: Callable[[], int]) -> int:
    child = os.fork()
    if child == 0:
        os._exit(work() or 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_same_mistake_is_said_by_the_first_process_of_a_launch(capfd: pytest.CaptureFixture[str]) -> None:
    """Another one is said by whoever makes it; each command that is not launched speaks for itself."""
    messages = ("the folder is wrong", "the folder is wrong", "rank 1 has no disk", "half of \ud83d")
    with LauncherServer():
        assert [in_a_fork(lambda message=message: fail(message)) for message in messages[:3]] == [2, 2, 2]
    err = capfd.readouterr().err
    assert err.count("the folder is wrong") == err.count("rank 1 has no disk") == 1
    assert [fail("the folder is wrong") for _ in range(2)] == [2, 2]
    assert capfd.readouterr().err.count("the folder is wrong") == 2


def test_the_launcher_learns_how_its_processes_ended() -> None:
    with LauncherServer() as desk:
        assert desk.exit_code is None
        assert launcher_pid() == os.getpid()
        in_a_fork(lambda: report_exit_code(75) or 0)
        assert desk.exit_code == 75
    assert launcher_pid() is None


def test_a_stranger_is_not_heard_and_a_launcher_that_is_gone_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(LAUNCHER, raising=False)  # as it is put back at the end
    monkeypatch.setenv(LAUNCHER, "")
    with LauncherServer() as desk:
        pid, port, _ = os.environ[LAUNCHER].split()
        silent = socket.create_connection(("127.0.0.1", int(port)))  # who says nothing keeps nobody
        monkeypatch.setenv(LAUNCHER, f"{pid} {port} guessed")
        report_exit_code(0)
        assert desk.exit_code is None
    silent.close()
    monkeypatch.setenv(LAUNCHER, f"{pid} {port} late")
    assert [fail("better twice than never") for _ in range(2)] == [2, 2]
    assert capfd.readouterr().err.count("better twice") == 2
