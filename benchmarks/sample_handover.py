"""Time that the data of a pack take in the thread that trains.

A sample is received from a loader worker: in shared memory, compared with a pipe. The noise and the plans of a pack of
45,000 tokens (clips of 93 frames at 320 × 256) are prepared: by a thread, compared with the thread that trains, which
waits for the GPU in between.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np
import torch
from gpu.nano_step import make_samples

from worldsmith.config.tree.references import resolve
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.stream.workers import receive_object, send_object
from worldsmith.distributed.world import World
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import tiny
from worldsmith.families.cosmos3.task import Cosmos3Task
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.tasks.batch_reader import BatchReader

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


class Packs:
    """A loader that returns the same pack without end."""

    def __init__(self, pack: list[Any]) -> None:
        self.pack = pack

    def __iter__(self) -> Iterator[list[Any]]:
        while True:
            yield list(self.pack)

    def state_dict(self) -> dict[str, Any]:
        return {}


def measure_preparation(tokens: int, rounds: int) -> tuple[list[float], list[float]]:
    """Returns the seconds that the inputs of a pack take in this thread: computed here, and by the thread of a run.

    The network is on the meta device, to which tensors are copied as to a GPU.
    """
    model = resolve(Cosmos3Generator.Config(network=tiny(vocab_size=512))).build(device="meta")
    pack = make_samples(tokens, 24, 16, 20, 200, channels=model.latent_channels)
    task = Cosmos3Task(
        model=model, objective=RectifiedFlow.Config(), data=VideoLoader.Config(), world=World(device="meta")
    )
    reader = BatchReader(Packs(pack), task, seed=0, count=2 * rounds + 2)  # type: ignore[arg-type]
    reader.inputs_of(next(reader))
    here, waited = [], []
    for batch in islice(reader, rounds):
        start = time.perf_counter()
        task.prepare_on_device(pack, seed=0)
        here.append(time.perf_counter() - start)
        reader.inputs_of(batch)
        time.sleep(1.0)  # a step of a GPU
        following = next(reader)
        start = time.perf_counter()
        reader.inputs_of(following)
        waited.append(time.perf_counter() - start)
    reader.close()
    return here, waited


def main() -> int:
    torch.set_num_threads(1)
    rounds = 3 if "--quick" in sys.argv else 20
    print(__doc__)
    for size in SIZES[:1] if "--quick" in sys.argv else SIZES:
        pipe, shared = map(median, measure(int(size * 2**20), rounds))
        print(
            f"{size:5} MiB: pipe {1e3 * pipe:7.2f} ms, shared memory {1e3 * shared:6.2f} ms: {pipe / shared:.1f} times"
        )
    here, waited = map(median, measure_preparation(4_500 if "--quick" in sys.argv else 45_000, rounds))
    ratio = here / waited
    print(f"pack: prepared in this thread {1e3 * here:7.2f} ms, by another {1e3 * waited:6.2f} ms: {ratio:.0f} times")
    return 0


if __name__ == "__main__":
    sys.exit(main())
