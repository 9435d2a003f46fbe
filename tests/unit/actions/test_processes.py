"""Work that is shared among processes: results, failures, and a process that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from worldsmith.actions.processes import WorkerProcessError, run_in_processes
from worldsmith.config.errors import UserError


def test_every_share_is_done_and_told() -> None:
    told: list[int] = []

    def work(number: int, count: int, done: Callable[[int], None]) -> list[int]:
        done(1)
        done(2)
        return [*range(number, 5, count)]

    assert run_in_processes(work, 2, told.append) == [[0, 2, 4], [1, 3]]
    assert told == sorted(told)
    assert told[-1] == 4


def test_what_one_of_them_refuses_is_raised_and_the_others_end() -> None:
    def work(number: int, count: int, done: Callable[[int], None]) -> None:
        if number == 1:
            raise UserError("the disk is full")
        signal.pause()

    with pytest.raises(UserError, match="the disk is full"):
        run_in_processes(work, 2, lambda done: None)


def test_one_that_is_killed_is_said() -> None:
    def work(number: int, count: int, done: Callable[[int], None]) -> None:
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    with pytest.raises(
        WorkerProcessError, match="process 0 was killed by SIGKILL; run the same command again to continue"
    ):
        run_in_processes(work, 2, lambda done: None)
