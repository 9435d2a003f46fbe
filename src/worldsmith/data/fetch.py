"""Made samples in order, by worker processes. Those that die, of memory or of a clip, are replaced."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from worldsmith.data.positions import Cursor, Positions
from worldsmith.data.sample import Rejection
from worldsmith.data.sample_maker import Made, SampleMaker
from worldsmith.data.worker import DEATHS, start_worker, workers_deaf

log = logging.getLogger(__name__)

DIED = re.compile(r"DataLoader worker \(pid")
"""How PyTorch's message begins when a worker is gone; one from within a worker begins with "Caught"."""
TOGETHER = 2
"""Deaths before the same sample until it is made by a worker of its own, which shows whether it is the cause."""
LOGGED_DEATHS = 3


def fetch(
    maker: SampleMaker, cursor: Cursor, step: int, *, workers: int, prefetch: int, counts: Counter[str]
) -> Iterator[Made]:
    """The samples at the positions of the cursor, which the caller advances by `step` after each.

    When a worker has died, all are replaced and go on at the cursor: nothing is lost or changes. A sample whose own
    worker dies too is rejected ("crashes_worker"). Deaths are counted in `counts` as workers_died.
    """
    stream: Iterator[Made] | None = None
    deaths = 0
    """Since the last sample came."""
    while True:
        alone = deaths >= TOGETHER
        try:
            if stream is None:
                processes, ahead = (1, 1) if alone else (workers, prefetch)
                stream = start(maker, cursor, step, workers=processes, prefetch=ahead)
            made, death = DEATHS.next(stream), ""
        except RuntimeError as error:
            if not DIED.match(str(error)):
                raise
            death = cause(error)
        if death:
            stream = None  # ends its other workers
            deaths += 1
            counts["workers_died"] += 1
            report(death, counts["workers_died"])
            if not alone:
                continue
            made = leave_out(maker, next(cursor.positions(step)), death)
        yield made
        deaths = 0
        if alone:
            stream = None


def start(maker: SampleMaker, cursor: Cursor, step: int, *, workers: int, prefetch: int) -> Iterator[Made]:
    """What the worker processes make from the cursor on; made in this process without any."""
    # Linux forks: a worker is there in milliseconds, and it uses no thread pool that it inherited (one torch
    # thread, its own decoders, no tokenizer). Elsewhere system libraries do not survive a fork.
    context = ("fork" if sys.platform == "linux" else "spawn") if workers else None
    loader = torch.utils.data.DataLoader(
        maker,
        batch_size=None,
        sampler=Positions(list(cursor.set_aside), cursor.next_position, step),
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        multiprocessing_context=context,
        worker_init_fn=partial(start_worker, os.getpid()),
        # Numpy arrays go through the pipe; tensors would need shared memory, which is tiny in many containers.
        collate_fn=as_is,
        # A generator of its own: the default would draw from the training's global random state.
        generator=torch.Generator().manual_seed(maker.seed),
    )
    with workers_deaf(), DEATHS.held_back():
        return iter(loader)


def cause(error: RuntimeError) -> str:
    """The message that says how the worker ended: PyTorch may have put a shorter one before it."""
    return next((str(e) for e in (error.__cause__, error) if DIED.match(str(e))), "").strip()


def leave_out(maker: SampleMaker, position: int, death: str) -> Made:
    window = maker.window(position)
    detail = f"the process that read it died, also without others beside it: {death}"
    return Made(Rejection(window.key, "crashes_worker", detail, window.path))


def report(death: str, number: int) -> None:
    if number <= LOGGED_DEATHS:
        log.warning(
            "%s; new worker processes go on at the same sample%s. If memory is short, lower "
            "dataloader_train.num_workers or prefetch_factor",
            death.rstrip("."), " (further ones are only counted)" if number == LOGGED_DEATHS else "",
        )  # fmt: skip


def as_is(made: Any) -> Any:
    return made
