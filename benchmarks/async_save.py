"""How much do steps suffer from a save in the background, and how long does the loop stand still for it?

Blocks of training steps take turns: one without a save, one with a save in the background started before its first
step, and one save that the loop waits for. The state is that of the demo with a network of 8 layers: weights, average
and two AdamW moments. Goals: the block around a background save takes at most 5 % longer (the median over the turns);
the loop stands still for a fraction of the time of a save that it waits for.

    python benchmarks/async_save.py [--steps 12] [--rounds 5] [--threads 1] [--quick]

Writing needs a second core: on one core every second of it is taken from the steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from demo_run import demo_config

from worldsmith.checkpoint.checkpointer import folder_name
from worldsmith.training.run_state import save_run
from worldsmith.training.trainer import Trainer

GOAL = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="steps of a block")
    parser.add_argument("--rounds", type=int, default=5, help="turns that are timed")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--quick", action="store_true", help="2 clips, 1 layer, 1 turn: checks the program only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.quick:
        arguments.steps, arguments.rounds = 2, 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = {"clips": 2, "layers": 1} if arguments.quick else {"clips": 16, "layers": 8}
        trainer = Trainer(demo_config(folder / "data", **size), run_folder=folder / "run")
        blocks = Blocks(trainer, arguments.steps)
        blocks.turn()  # warms up, fills the latent cache, makes the copies' buffers
        turns = [blocks.turn() for _ in range(arguments.rounds)]
        saved = folder / "run/checkpoints" / folder_name(trainer.iteration)
        size_on_disk = sum(file.stat().st_size for file in saved.rglob("*") if file.is_file())
    plain, around, stall, waited = (statistics.median(figures) for figures in zip(*turns, strict=True))
    slower = statistics.median(turn[1] / turn[0] - 1 for turn in turns)
    print(f"checkpoints of {size_on_disk / 1e6:.0f} MB, blocks of {arguments.steps} steps, {arguments.threads} threads")
    print(f"block without a save:          {plain:6.2f} s (median of {arguments.rounds})")
    print(f"block with one in background:  {around:6.2f} s, {100 * slower:+.1f} % (goal: at most {100 * GOAL:.0f} %)")
    print(f"of which the loop stood still: {stall:6.3f} s")
    print(f"a save that the loop waits for:{waited:6.2f} s; standing still is {100 * stall / waited:.0f} % of it")
    return 0 if slower <= GOAL or arguments.quick else 1


class Blocks:
    """The three things that take turns, on one run."""

    def __init__(self, trainer: Trainer, steps: int) -> None:
        self.trainer = trainer
        self.steps = steps
        self.batches = iter(trainer.loader)

    def turn(self) -> tuple[float, float, float, float]:
        """Seconds of a block without a save, of one with it, of standing still in that, and of a save waited for."""
        start = time.perf_counter()
        self.run_steps()
        plain = time.perf_counter() - start
        start = time.perf_counter()
        save_run(self.trainer, background=True)
        stall = time.perf_counter() - start
        self.run_steps()
        around = time.perf_counter() - start
        self.trainer.checkpointer.settle()
        start = time.perf_counter()
        save_run(self.trainer)
        return plain, around, stall, time.perf_counter() - start

    def run_steps(self) -> None:
        for _ in range(self.steps):
            self.trainer.training_step(self.batches)


if __name__ == "__main__":
    sys.exit(main())
