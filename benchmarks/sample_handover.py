"""Time in which the training process receives a sample from a loader worker: shared memory, compared with a pipe."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection
from statistics import median

import numpy as np

from worldsmith.data.stream.workers import receive_object, send_object

SIZES = (0.7, 8, 46)
"""Sizes of samples in MiB: cached latents, a short clip as uint8, and a clip of 93 frames at 480 × 256 or larger."""


def send_all(pipe: Connection, size: int, rounds: int, receiver: int) -> None:
    """Sends `rounds` arrays of `size` bytes both ways in turn, each when the receiver asks for it."""
    array = np.ones(size, dtype=np.uint8)
    for _ in range(rounds):
        pipe.recv()
        pipe.send(array)
        pipe.recv()
        send_object(pipe, array, receiver)


def measure(size: int, rounds: int) -> tuple[list[float], list[float]]:
    """Returns the seconds to receive `size` bytes in each round: through the pipe, and in shared memory."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=send_all, args=(theirs, size, rounds, os.getpid()), daemon=True)
    process.start()
    times: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for kept, receive in zip(times, (ours.recv, lambda: receive_object(ours)), strict=True):
            ours.send(None)
            while not ours.poll(0.001):  # the sample is ready, as with a prefetching worker
                pass
            time.sleep(0.05)
            start = time.perf_counter()
            array = receive()
            assert int(array[:: size // 8].sum()) >= 8
            kept.append(time.perf_counter() - start)
    process.join()
    return times


def main() -> int:
    rounds = 3 if "--quick" in sys.argv else 20
    print(__doc__)
    for size in SIZES[:1] if "--quick" in sys.argv else SIZES:
        pipe, shared = map(median, measure(int(size * 2**20), rounds))
        print(
            f"{size:5} MiB: pipe {1e3 * pipe:7.2f} ms, shared memory {1e3 * shared:6.2f} ms: {pipe / shared:.1f} times"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
