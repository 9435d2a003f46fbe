"""Samples per second of the loader on clips in an object store, compared with the same clips on disk.

    python benchmarks/store_loader.py [DATASET_FOLDER] [--resolution 256] [--rounds 3] [--latency 0] [--quick]

A local S3 server (moto, in its own process) stores the clips. In each round, each clip is loaded and decoded by each
variant in turn, in this process with one thread:

- local files
- empty cache: each clip is requested (size and version, then content) and written to the cache on disk
- warm cache: a later epoch of the same run, without requests
- warm cache, new run: the size and version of each clip are requested once

Pixels must be equal. Wall time is printed, and CPU time of this process, which other work on the machine does not
change. `--latency` is the number of seconds by which the server delays each answer. Without a folder, 8 clips are
generated as in benchmarks/loader.py; --quick: 2 clips of 9 frames, 1 round.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from loader import build, make_clips

from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.shards.addresses import read_clip
from worldsmith.files import remote

sys.path.append(str(Path(__file__).parents[1] / "tests/support"))
from object_store import ObjectStore, connected, serving


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", type=Path, help="folder of a data set; omitted: clips are generated")
    parser.add_argument("--resolution", default="256")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are timed")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds by which each answer is delayed")
    parser.add_argument("--quick", action="store_true", help="2 clips of 9 frames, 1 round: only checks the program")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, serving() as server, pytest.MonkeyPatch.context() as context:
        folder = Path(name)
        dataset = arguments.dataset or make_clips(folder / "clips", *((2, 9) if arguments.quick else (8, 93)))
        with connected(server, context, folder / "cache") as store:
            return compare(store, dataset, arguments)


def compare(store: ObjectStore, dataset: Path, arguments: argparse.Namespace) -> int:
    local = build(dataset, arguments.resolution)
    stored = build(store.put_folder(dataset, "clips"), arguments.resolution)
    store.fail(slow=arguments.latency)

    def forget(*, cache: bool) -> None:
        read_clip.cache_clear()
        remote.remote_facts.cache_clear()
        if cache:
            shutil.rmtree(remote.cache_folder(), ignore_errors=True)

    variants: dict[str, tuple[VideoLoader, Callable[[], object]]] = {
        "local files": (local, read_clip.cache_clear),
        "empty cache": (stored, lambda: forget(cache=True)),
        "warm cache": (stored, read_clip.cache_clear),
        "warm cache, new run": (stored, lambda: forget(cache=False)),
    }
    rounds = 1 if arguments.quick else arguments.rounds
    seconds = {name: [[0.0, 0.0] for _ in range(rounds + 1)] for name in variants}
    requests = dict.fromkeys(variants, 0)
    count, same = 0, True
    for turn in range(rounds + 1):  # the first one warms up
        samples = {name: loader.first_samples() for name, (loader, _) in variants.items()}
        for expected in local.first_samples():
            count += 1
            for name, (_, prepare) in variants.items():
                prepare()
                store.requests()
                start = time.perf_counter(), time.process_time()
                sample = next(samples[name])
                for clock, end in enumerate((time.perf_counter(), time.process_time())):
                    seconds[name][turn][clock] += end - start[clock]
                requests[name] += len(store.requests())
                same = same and torch.equal(sample.video, expected.video)
    print(f"{count // (rounds + 1)} samples, resolution bucket {arguments.resolution}; median of {rounds} rounds")
    for name, times in seconds.items():
        rate = count / (rounds + 1) / statistics.median(wall for wall, _ in times[1:])
        wall, cpu = (
            statistics.median(near[clock] / far[clock] for near, far in zip(seconds["local files"][1:], times[1:]))
            for clock in (0, 1)
        )
        print(
            f"{name:<20}{rate:7.2f} samples/s, ratio {wall:.2f}; CPU time: ratio {cpu:.2f}; "
            f"{requests[name] / count:.0f} requests per clip"
        )
    print(f"pixels: {'equal' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
