"""What does Ray cost, compared with processes that we start ourselves?

First `worldsmith encode` with two processes of moving-shapes clips of 17 frames of 128 × 128, as in
`benchmarks/encode.py`: local processes and Ray take turns, in a Ray that is running already. Both must leave the same
files, byte for byte. The rate counts from the first result to the last, as the start of the actors takes seconds. Then
an empty function on many records, in the same Ray, from which the time per record follows: the difference between many
records and few is the work, and the rest is the start of the processes.

    python benchmarks/ray_encode.py [--rounds 3] [--clips 32] [--records 4000] [--quick]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from demo_run import demo_config
from encode import make_vae
from side_by_side import medians

from worldsmith.actions.processes import run_in_processes
from worldsmith.actions.ray_processes import connect_ray, map_on_ray
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.references import resolve
from worldsmith.tools.encode.encode import Encode

FEW = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="turns that are timed")
    parser.add_argument("--clips", type=int, default=32, help="clips that are encoded")
    parser.add_argument("--records", type=int, default=4000, help="records of the empty function")
    parser.add_argument("--quick", action="store_true", help="2 clips of 64 × 64, 1 turn: checks the program only")
    arguments = parser.parse_args()
    clips, size, rounds = (2, 64, 1) if arguments.quick else (arguments.clips, 128, arguments.rounds)
    records = 64 if arguments.quick else arguments.records
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = demo_config(folder / "data", clips=clips, layers=1, size=size)
        config.trainer.cpu_threads = 1
        config.model.config.tokenizer.vae_path = make_vae(config, folder / "vae", 16 if arguments.quick else 64)

        rates: dict[str, list[float]] = {"local": [], "ray": []}

        def encode(on: str) -> Callable[[], None]:
            cache = folder / on

            def once() -> None:
                shutil.rmtree(cache, ignore_errors=True)
                config.dataloader_train.latent_cache = str(cache)
                action = Encode.Config(processes=2, on=on).build(run=Loaded(resolve(config)))
                marks: list[tuple[float, int]] = []

                def shown(done: int) -> None:
                    marks.append((time.monotonic(), done))

                if on == "ray":
                    action.encode_on_ray(shown)
                else:
                    run_in_processes(action.encode_share, 2, shown)
                (first, before), (last, after) = marks[0], marks[-1]
                rates[on].append((after - before) / max(last - first, 1e-3))

            return once

        started = time.monotonic()
        with connect_ray("ray", 2):
            start = time.monotonic() - started
            seconds = medians({"local": encode("local"), "ray": encode("ray")}, rounds=rounds)
            few, many = (time_empty(count) for count in (FEW, records))
        files = [{path.name: path.read_bytes() for path in (folder / on).rglob("*.safetensors")} for on in seconds]
    print(f"{clips} clips of 17 frames of {size} × {size}, 2 processes; load of the machine {os.getloadavg()[0]:.1f}")
    print(f"start of Ray: {start:.1f} s")
    for on, taken in seconds.items():
        print(f"--on {on}: {taken:6.2f} s with the start of processes; then {median(rates[on]):.2f} clips/s")
    print(f"ratio of the rates of Ray and local: {median(rates['ray']) / median(rates['local']):.2f}")
    per_record = 1000 * (many - few) / (records - FEW)
    print(f"empty function: {FEW} records {few:.2f} s, {records} records {many:.2f} s: {per_record:.2f} ms per record")
    same = files[0] == files[1] and len(files[0]) == clips
    print(f"{len(files[0])} files: {'equal, byte for byte' if same else 'DIFFERENT'}")
    return 0 if same else 1


def time_empty(records: int) -> float:
    """Returns the seconds in which two processes on Ray process this number of records with an empty function."""
    started = time.monotonic()
    assert sum(1 for _ in map_on_ray(lambda: abs, range(records), 2)) == records
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
