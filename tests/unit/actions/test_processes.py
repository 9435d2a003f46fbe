"""Work that is shared among processes: results, failures, and a process that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

import pytest

from worldsmith.actions.action import Result
from worldsmith.actions.pool_action import PoolAction
from worldsmith.actions.processes import FailedItem, run_in_processes
from worldsmith.config.errors import UserError
from worldsmith.files.errors import WorkerProcessError


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


def test_one_that_is_killed_while_it_sends_its_result_is_said() -> None:
    def send_a_part(pipe: Connection, message: bytes) -> None:
        os.write(pipe.fileno(), bytes(message)[:10])
        os.kill(os.getpid(), signal.SIGKILL)

    def work(number: int, count: int, done: Callable[[int], None]) -> None:
        Connection._send = send_a_part  # type: ignore[attr-defined]  # of this process

    with pytest.raises(WorkerProcessError, match="process 0 was killed by SIGKILL"):
        run_in_processes(work, 1, lambda done: None)


class Pool(PoolAction):
    """A command that does nothing itself."""

    def run(self) -> Result:
        return Result()


class Write(Pool):
    """A command that writes."""

    aliases: ClassVar[Mapping[str, str]] = {"-o": "out"}

    class Config(Pool.Config):
        out: str | None = None


class WriteAnywhere(Write):
    """A command that writes to stores, too."""

    writes_to_stores = True


@pytest.mark.parametrize("out", ["s3://bucket/out", "s3:/bucket/out", "hf:/org/out", "https://me:secret@host/out"])
def test_results_are_not_written_to_a_folder_named_like_an_address(out: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^-o \w+:/+[^@]*: expected a path on this machine$"):
        Write.Config(out=out).build()
    if out.startswith(("hf:", "https:")):
        with pytest.raises(UserError, match=r"on this machine, or an address such as s3://bucket/folder"):
            WriteAnywhere.Config(out=out).build()
    else:
        assert WriteAnywhere.Config(out=out).build().config.out == out
    assert Write.Config(out=f"file://{tmp_path}/out").build().config.out == f"{tmp_path}/out"
    assert Write.Config(out=None).build().config.out is None


def make_reporter(number: int) -> Callable[[int], tuple[int, int, int]]:
    """A function that returns its item, the number of the process and the process ID; item 3 fails."""

    def report(item: int) -> tuple[int, int, int]:
        if item == 3:
            raise RuntimeError("no such pixel")
        return item, number, os.getpid()

    return report


@pytest.mark.parametrize("processes", [1, 2])
def test_items_are_divided_among_the_processes_of_a_command(processes: int) -> None:
    found = list(Pool(Pool.Config(processes=processes)).apply(make_reporter, range(6)))
    assert [each for each in found if isinstance(each, FailedItem)] == [FailedItem(3, "RuntimeError: no such pixel")]
    done = sorted(each for each in found if not isinstance(each, FailedItem))
    assert [(item, number) for item, number, _ in done] == [(item, item % processes) for item in (0, 1, 2, 4, 5)]
    pids = {pid for *_, pid in done}
    assert len(pids) == processes
    assert (os.getpid() in pids) == (processes == 1)


def refuse(number: int) -> Callable[[int], int]:
    raise UserError("the disk is full")


def test_what_a_process_refuses_ends_the_command() -> None:
    action = Pool(Pool.Config(processes=2))
    with pytest.raises(UserError, match="the disk is full"):
        list(action.apply(refuse, range(4)))
    assert list(action.apply(refuse, [])) == []
