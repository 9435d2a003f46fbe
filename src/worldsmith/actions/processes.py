"""Divides work among processes of this machine, which report their progress."""

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
    """A process ended before its work was done."""


def run_in_processes(
    work: Callable[[int, int, Callable[[int], None]], T], count: int, shown: Callable[[int], None]
) -> list[T]:
    """Returns the results of `work(number, count, done)` in `count` processes; `shown` receives the total progress.

    If one process fails, the others end; if this process ends, all end. Raises UserError as `work` does, and
    WorkerProcessError for a process that was killed.
    """
    # As for loader workers: Linux forks, and nothing has used a thread pool yet.
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
                raise WorkerProcessError(f"process {number} {how}; the same command continues") from None
            if kind == "refused":
                raise UserError(value)
            if kind == "done":
                done[number] = value
                shown(sum(done))
            else:
                results[number] = value
    return [results[number] for number in range(len(pipes))]


def run_worker(work: Callable[..., Any], number: int, count: int, pipe: Connection, parent: int) -> None:
    """Runs the work of a process; exits immediately on SIGINT or SIGTERM, or when its parent ends."""
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, signal.SIG_DFL)
    signal_at_parents_end(signal.SIGTERM, parent)
    try:
        pipe.send(("result", work(number, count, lambda done: pipe.send(("done", done)))))
    except (UserError, DataError, ValueError, OSError) as error:
        pipe.send(("refused", str(error)))
