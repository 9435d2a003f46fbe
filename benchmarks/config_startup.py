"""How long commands that need no torch take, against `python -c "import torch"`, in one run.

Prints the ratio of the medians of wall times; the commands take turns, so that a busy machine slows all of them.

    python benchmarks/config_startup.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

RECIPE = Path(__file__).parents[1] / "examples/toml/sft_config/moving_shapes.toml"
TORCH = "import torch"
COMMANDS = {
    TORCH: ["-c", "import torch"],
    "worldsmith config check": ["-m", "worldsmith", "config", "check", str(RECIPE)],
    "worldsmith --help": ["-m", "worldsmith", "--help"],
    "worldsmith plan --quick": ["-m", "worldsmith", "plan", "vision_sft_nano", "--gpus", "8", "--quick"],
}
GOALS = {"worldsmith config check": 0.25, "worldsmith --help": 0.2, "worldsmith plan --quick": 0.35}


def seconds(words: list[str]) -> float:
    """Wall time of one process. Raises CalledProcessError if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DATASET_PATH": "/data"}
    start = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="times that each command is run, after one to warm up")
    rounds = max(1, parser.parse_args().rounds)
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for index in range(rounds + 1):
        for name, words in COMMANDS.items():
            taken = seconds(words)
            if index:  # the first round fills the disk cache
                times[name].append(taken)
    medians = {name: statistics.median(found) for name, found in times.items()}
    print(f"{TORCH}: {medians[TORCH]:.2f} s (median of {rounds})")
    reached = True
    for name, goal in GOALS.items():
        ratio = medians[name] / medians[TORCH]
        reached &= ratio <= goal
        print(f"{name}: {medians[name]:.2f} s, ratio {ratio:.3f} (goal: at most {goal})")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
