"""Made samples in order, by worker processes. One that dies, of memory or of a clip, is replaced."""

from __future__ import annotations

import logging
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from worldsmith.data.stream.maker import Made, S, SampleMaker
from worldsmith.data.stream.positions import Positions
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.worker import DeadWorkerError, Worker

log = logging.getLogger(__name__)

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
"""Signals by which a process ends through what it does itself; SIGKILL comes from others, such as the OOM killer."""
ATTEMPTS = 5
"""Deaths at the same sample, not through such a signal, after which it is left out."""
PAUSE = 1.0
"""Seconds before the third attempt and later ones: others may need the memory for a while."""


def fetch(
    maker: SampleMaker[S], positions: Positions, *, workers: int, prefetch: int, counts: Counter[str]
) -> Iterator[Made[S]]:
    """The samples at the positions, made in this process if there are no `workers`.

    A worker that dies is replaced by one that holds a single sample ready; nothing is lost or changes. A sample at
    which such a one crashes is rejected as "crashes_worker". Deaths are counted in `counts` as workers_died.
    """
    if not workers:
        yield from map(maker.__getitem__, positions)
        return
    team: list[Worker[S]] = []
    try:
        team.extend(Worker(maker, positions, first, workers, prefetch) for first in range(workers))
        for number, position in enumerate(positions):
            place, attempts = number % workers, 0
            made: Made[S] | None = None
            while made is None:
                try:
                    made = team[place].receive()
                except DeadWorkerError as death:
                    attempts += 1
                    counts["workers_died"] += 1
                    known = team[place].ahead == 1 and (death.signal in CRASHES or attempts >= ATTEMPTS)
                    rejection = blame(maker, position, death, attempts)
                    report(death, rejection.key, counts["workers_died"], left_out=known)
                    if known:
                        made = Made(rejection)
                    elif attempts > 1:
                        time.sleep(PAUSE)
                    following = number + workers if known else number
                    team[place] = Worker(maker, positions, following, workers, ahead=1)
            yield made
    finally:
        for worker in team:
            worker.end()


def blame(maker: SampleMaker[Any], position: int, death: DeadWorkerError, attempts: int) -> Rejection:
    times = f" ({attempts} have died there)" if attempts > 1 else ""
    return maker.reject(position, "crashes_worker", f"{death} while it read this sample{times}")


def report(death: DeadWorkerError, key: str, number: int, *, left_out: bool) -> None:
    """Says the first deaths and then every tenth, hundredth and so on; all are counted."""
    if number > 3 and str(number).strip("0") != "1":
        return
    then = "that sample is left out" if left_out else "another one goes on there"
    memory = "; if memory is short, lower num_workers or prefetch_factor of the data loader"
    advice = memory if death.signal is signal.SIGKILL else ""
    log.warning("%s when %s was waited for; %s (death %d)%s", death, key, then, number, advice)
