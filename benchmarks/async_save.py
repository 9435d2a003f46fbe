"""How much do steps suffer from a save in the background, and how long does the loop stand still for it?

Blocks of training steps take turns: one without a save and one with a save in the background started before its first
step, now this one first and now the other, since a machine gets faster and slower by itself; then one save that the
loop waits for. The state is that of the demo with a network of 8 layers: weights, average and two AdamW moments. Goals:
the block around a background save takes at most 5 % longer (the median over the turns); the loop stands still for a
fraction of the time of a save that it waits for.

    python benchmarks/async_save.py [--steps 12] [--rounds 20] [--threads 1] [--quick]

Writing needs a second core that is idle: without one every second of it is taken from the steps, and so it is on a
machine where other programs run, which the last line then says. How much blocks of the same kind differ is printed
beside the medians: a figure smaller than that needs many turns. The CPU time of the training thread is another witness;
it does not see waiting, for the writer or for another program.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
from demo_run import demo_config

from worldsmith.checkpoint.run.find_checkpoint import folder_name
from worldsmith.training.trainer import Trainer

GOAL = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="steps of a block")
    parser.add_argument("--rounds", type=int, default=20, help="turns that are timed")
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
        blocks.turn(save_first=True)  # warms up, fills the latent cache, makes the copies' buffer
        turns = [blocks.turn(save_first=number % 2 == 1) for number in range(arguments.rounds)]
        saved = folder / "run/checkpoints" / folder_name(trainer.iteration)
        size_on_disk = sum(file.stat().st_size for file in saved.rglob("*") if file.is_file())
    middle = Turn(*(statistics.median(figures) for figures in zip(*map(astuple, turns), strict=True)))
    slower = statistics.median(turn.around / turn.plain - 1 for turn in turns)
    total = sum(turn.around for turn in turns) / sum(turn.plain for turn in turns) - 1
    cpu = statistics.median(turn.around_cpu / turn.plain_cpu - 1 for turn in turns)
    spread = statistics.pstdev(turn.plain for turn in turns) / middle.plain
    share = middle.stall / middle.waited
    print(f"checkpoints of {size_on_disk / 1e6:.0f} MB, blocks of {arguments.steps} steps, {arguments.threads} threads")
    print(f"block without a save:            {middle.plain:6.2f} s (median of {len(turns)}, they vary by {spread:.0%})")
    print(f"block with one in background:    {middle.around:6.2f} s, {slower:+.1%} (goal: at most {GOAL:.0%})")
    print(f"all such blocks together:        {total:+.1%}; CPU time of the training thread: {cpu:+.1%}")
    print(f"of which the loop stood still:   {middle.stall:6.3f} s")
    print(f"a save that the loop waits for:  {middle.waited:6.2f} s; standing still is {share:.0%} of it")
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores:
        print(f"the machine is busy (load {load:.1f} on {cores} cores): wall times measure that, too")
    return 0 if slower <= GOAL or arguments.quick else 1


@dataclass(frozen=True)
class Turn:
    """Seconds of one turn; `_cpu` is the CPU time of the training thread."""

    plain: float
    plain_cpu: float
    around: float
    around_cpu: float
    stall: float
    waited: float


class Blocks:
    """The three things that take turns, on one run."""

    def __init__(self, trainer: Trainer, steps: int) -> None:
        self.trainer = trainer
        self.steps = steps
        self.batches = iter(trainer.state.loader)

    def turn(self, *, save_first: bool) -> Turn:
        """A block without a save, one with a save in the background (or the other way), and a save to wait for."""
        figures = {save: self.block(save) for save in (save_first, not save_first)}
        start = time.perf_counter()
        self.trainer.state.save()
        waited = time.perf_counter() - start
        (plain, plain_cpu, _), (around, around_cpu, stall) = figures[False], figures[True]
        return Turn(plain, plain_cpu, around, around_cpu, stall, waited)

    def block(self, save: bool) -> tuple[float, float, float]:
        """Seconds of a block, CPU seconds of its thread, and seconds until its first step begins."""
        start, cpu = time.perf_counter(), time.thread_time()
        if save:
            self.trainer.state.save(background=True)
        stall = time.perf_counter() - start
        self.run_steps()
        seconds, cpu_seconds = time.perf_counter() - start, time.thread_time() - cpu
        self.trainer.checkpointer.wait_for_background_save()
        return seconds, cpu_seconds, stall

    def run_steps(self) -> None:
        for _ in range(self.steps):
            self.trainer.training_step(self.batches)


if __name__ == "__main__":
    sys.exit(main())
