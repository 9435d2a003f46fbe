"""Splits work among processes of this machine, which report their progress."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from worldsmith.config.errors import UserError
from worldsmith.data.stream.errors import DataError
from worldsmith.distributed.process_signals import signal_at_parents_end

T = TypeVar("T")


class WorkerProcessError(RuntimeError):
    """A worker process ended before its work was complete."""


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
    # As for loader workers: Linux forks, and no thread pool has been used yet.
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pipes, processes = [], []
    try:
        for number in range(count):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=run_worker, args=(work, number, count, sender, os.getpid()))
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        return collect_results(pipes, processes, shown)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def collect_results(pipes: list[Connection], processes: list[Any], shown: Callable[[int], None]) -> list[Any]:
    """Receives the messages of all processes until each has sent its result; returns the results in process order.

    Args:
        pipes: One receiving end per process.
        processes: The process objects, in the same order.
        shown: As in `run_in_processes`, which also documents the errors.
    """
    done = [0] * len(pipes)
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        for pipe in wait([pipe for number, pipe in enumerate(pipes) if number not in results]):
            number = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                kind, value = pipes[number].recv()
            except EOFError:
                processes[number].join()
                code = processes[number].exitcode
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                raise WorkerProcessError(f"process {number} {how}; run the same command again to continue") from None
            if kind == "refused":
                raise UserError(value)
            if kind == "done":
                done[number] = value
                shown(sum(done))
            else:
                results[number] = value
    return [results[number] for number in range(len(pipes))]


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
