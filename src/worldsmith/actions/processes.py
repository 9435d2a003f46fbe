"""Splits work among processes of this machine, which report their progress."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast

from worldsmith.config.errors import UserError
from worldsmith.data.stream.errors import DataError
from worldsmith.distributed.process_signals import signal_at_parents_end
from worldsmith.files.errors import WorkerProcessError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FailedItem:
    """Result for an item whose processing failed, instead of the result of the function."""

    item: Any
    reason: str


def call_or_fail(function: Callable[[Any], Any], item: Any) -> Any:
    """Returns `function(item)`, or a `FailedItem` if it raises an error. UserError and DataError are raised."""
    try:
        return function(item)
    except (UserError, DataError):
        raise
    except Exception as error:
        return FailedItem(item, f"{type(error).__name__}: {error}")


def run_in_processes(
    work: Callable[[int, int, Callable[[int], None]], T], count: int, shown: Callable[[int], None]
) -> list[T]:
    """Runs `work` in `count` processes and returns their results in the order of the process numbers.

    If one process fails, the others are terminated; if the caller ends, all end. Processes are forked on Linux and
    spawned elsewhere.

    Args:
        work: Called as `work(number, count, report)` in process `number`; `report(done)` sends the amount of finished
            work. On platforms without fork it must be picklable, like its result.
        count: Number of processes.
        shown: Called in this process after each report with the sum of the last amounts of all processes.

    Raises:
        UserError: If `work` raises UserError, DataError, ValueError or OSError.
        WorkerProcessError: If a process was killed or ended with another error.
    """
    done, results = [0] * count, dict[int, T]()
    for kind, number, value in run_messages(work, count):
        if kind == "result":
            results[number] = value
        else:
            done[number] = value
            shown(sum(done))
    return [results[number] for number in range(count)]


def run_messages(
    work: Callable[[int, int, Callable[[Any], None]], Any], count: int, *, spawn: bool = sys.platform != "linux"
) -> Iterator[tuple[str, int, Any]]:
    """Runs `work` in `count` processes of this machine and yields what they report.

    When the caller stops reading, and after an error, the processes that still run are terminated.

    Args:
        work: As in `run_in_processes`.
        count: Number of processes.
        spawn: Whether the processes start without a copy of this one. It must be so if this one has computed with
            PyTorch, because neither its threads nor its use of a GPU can be copied.

    Yields:
        ("done", process number, value that `work` has reported) or ("result", process number, result of `work`).

    Raises:
        UserError: If `work` raises UserError, DataError, ValueError or OSError.
        WorkerProcessError: If a process was killed or ended with another error.
    """
    context: Any = multiprocessing.get_context("spawn" if spawn else "fork")
    running: dict[Connection, tuple[int, Any]] = {}
    processes = []
    try:
        for number in range(count):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=run_worker, args=(work, number, count, sender, os.getpid()))
            process.start()
            sender.close()
            running[receiver] = number, process
            processes.append(process)
        while running:
            for pipe in cast(list[Connection], wait(list(running))):
                number, process = running[pipe]
                try:
                    kind, value = pipe.recv()
                except (EOFError, OSError):  # at the end of the process, or within a message
                    process.join()
                    code = process.exitcode
                    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                    again = "run the same command again to continue"
                    raise WorkerProcessError(f"process {number} {how}; {again}") from None
                if kind == "refused":
                    raise UserError(value)
                if kind == "result":
                    del running[pipe]
                yield kind, number, value
    finally:
        for process in processes:
            process.kill()  # a process that has just been forked may still have a handler of ours for SIGTERM
        for process in processes:
            process.join()


def apply_to_share(
    make: Callable[[int], Callable[[Any], Any]],
    items: Sequence[Any],
    number: int,
    count: int,
    report: Callable[[Any], None],
) -> None:
    """Applies the function that `make(number)` returns to every `count`-th item, from item `number`.

    Args:
        make: As in `PoolAction.apply`.
        items: Items of all processes.
        number: Number of this process.
        count: Number of processes.
        report: Called with each result.
    """
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    function = make(number)
    for item in items[number::count]:
        report(call_or_fail(function, item))


def run_worker(work: Callable[..., Any], number: int, count: int, pipe: Connection, parent: int) -> None:
    """Runs `work` in process `number` of `count` and sends progress, then the result or an expected error, to `pipe`.

    The process exits immediately on SIGINT or SIGTERM, or when the process with the id `parent` ends.
    """
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop_signal, signal.SIG_DFL)
    signal_at_parents_end(signal.SIGTERM, parent)
    try:
        pipe.send(("result", work(number, count, lambda done: pipe.send(("done", done)))))
    except (UserError, DataError, ValueError, OSError) as error:
        pipe.send(("refused", str(error)))
