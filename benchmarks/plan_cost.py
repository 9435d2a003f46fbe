"""What does an exact plan cost? `worldsmith plan RECIPE --gpus 8` in a process of its own: processor time and memory.

Processor time, since a machine may do other things meanwhile. The goal for Nano: 60 s and 4 GB.

    python benchmarks/plan_cost.py [RECIPE…]
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys

VARIABLES = ("DATASET_PATH", "WAN_VAE_PATH", "BASE_CHECKPOINT_PATH", "COGVIDEOX_PATH", "WAN_PATH")


def cost(recipe: str) -> tuple[float, float]:
    """Seconds and gigabytes. Raises RuntimeError for a plan that fails."""
    words = [sys.executable, "-m", "worldsmith", "plan", recipe, "--gpus", "8", "--json"]
    environment = {**dict.fromkeys(VARIABLES, "none"), **os.environ, "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(words, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode:
        raise RuntimeError(run.stderr)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, after.ru_maxrss * 1024 / 1e9


def main() -> None:
    for recipe in sys.argv[1:] or ["vision_sft_nano"]:
        seconds, memory = cost(recipe)
        print(f"{recipe}: {seconds:.1f} s of a processor, {memory:.2f} GB")


if __name__ == "__main__":
    main()
