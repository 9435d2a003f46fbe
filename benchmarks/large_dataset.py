"""Start-up time and memory of a data set with millions of records, with and without its index on disk.

    python benchmarks/large_dataset.py [--records 10000000] [--quick]

Writes a data set file with this number of records, with one window each, and starts three programs that each build
the data loader: the first one also writes the index. Each then does what a run does at its start (fingerprint,
position, overlap with the validation data, order of the first two epochs) and reads 10,000 windows in the order of an
epoch.
Before that, a data set of 100,000 records is read without an index, for comparison. Printed are seconds from the start
of the program, its peak memory in MiB, and bytes per record above that of a data set with one record.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from worldsmith.data.clips import video_dataset
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_loader import VideoLoader

READS = 10_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--quick", action="store_true", help="2,000 records, large from 1,000 on: checks the program")
    parser.add_argument("--start", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start:
        if arguments.quick:
            video_dataset.MANY = 1000
        print(json.dumps(start(*arguments.start)))
        return 0
    records = 2000 if arguments.quick else arguments.records
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        sizes = {"one": 1, "validation": 100, "small": min(100_000, records // 4), "large": records}
        files = {label: write_records(folder / f"{label}.jsonl", count) for label, count in sizes.items()}
        print(f"data set file  {files['large'].stat().st_size / 2**30:.2f} GiB, {records:,} records")
        base = run(files["one"], files["validation"], folder, arguments.quick)
        for label, title in [("small", "in memory"), ("large", "first start"), ("large", "second start")]:
            found = run(files[label], files["validation"], folder, arguments.quick)
            bytes_each = (found["peak"] - base["peak"]) * 2**20 / sizes[label]
            print(
                f"{title:<13}  {sizes[label]:>10,} records  {found['seconds']:8.1f} s  {found['peak']:7.0f} MiB"
                f"  {bytes_each:7.1f} bytes per record  {found['read'] * 1e6:5.1f} us per window"
            )
            assert (found["records"], found["overlap"]) == (sizes[label], 100)
        index = folder / "cache/worldsmith/datasets"
        size = sum(file.stat().st_size for file in index.rglob("*") if file.is_file())
        print(f"index          {size / 2**30:.2f} GiB; a program with one record: {base['peak']:.0f} MiB")
    return 0


def write_records(file: Path, count: int) -> Path:
    with open(file, "w") as lines:
        for i in range(count):
            window = (
                '{"start_frame": 0, "end_frame": 119, "temporal_interval": 1, '
                f'"caption": "A synthetic caption of clip {i}, about as long as a short sentence."}}'
            )
            facts = '"duration": 5.0, "width": 1280, "height": 720, "nb_frames": 120'
            path = f"clips/{i % 10_000:04d}/clip-{i:08d}.mp4"
            lines.write(f'{{"uuid": "clip-{i:08d}", "vision_path": "{path}", {facts}, "t2w_windows": [{window}]}}\n')
    return file


def run(file: Path, validation: Path, folder: Path, quick: bool) -> dict[str, float]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    begin = time.perf_counter()
    command = [sys.executable, __file__, *["--quick"] * quick, "--start", str(file), str(validation)]
    found = json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout)
    found["seconds"] = found.pop("started") - begin
    return found


def start(file: str, validation: str) -> dict[str, float]:
    config = VideoLoader.Config(max_samples_per_batch=1)
    config.dataset.path = file
    loader = config.build(grid=LatentGrid(frames=4, pixels=16, patch=2), tokenizer=lambda text: [0])
    config.dataset.path = validation
    overlap = config.dataset.build().count_overlap(loader.dataset)
    records = len(loader.dataset)
    loader.state_dict()
    for position in (0, records):
        loader.maker.window(position)
    started = time.perf_counter()
    for position in range(READS):
        loader.maker.window(position)
    read = (time.perf_counter() - started) / READS
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"records": records, "overlap": overlap, "started": started, "read": read, "peak": peak}


if __name__ == "__main__":
    sys.exit(main())
