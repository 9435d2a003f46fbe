"""What do the callbacks that watch a run cost, at their defaults?

Blocks of training steps take turns: one with all callbacks that every run has (figures into metrics.jsonl and
TensorBoard, status, devices, norms, terminal, page), and one with none of them, now this one first and now the other,
since a machine gets faster and slower by itself. As many steps are watched as it takes for everything to happen that
happens every 100 steps. Goal: watched steps take at most 3 % longer, over all turns.

    python benchmarks/monitor_cost.py [--steps 10] [--rounds 10] [--threads 1] [--quick]

How much blocks without callbacks differ from each other is printed beside it: a figure smaller than that, divided by
the root of the rounds, needs more turns. CPU time is another witness; it does not see waiting.
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

from worldsmith.training.run_config import monitors
from worldsmith.training.trainer import Trainer

GOAL = 0.03


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="steps of a block")
    parser.add_argument("--rounds", type=int, default=10, help="turns that are timed")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--quick", action="store_true", help="2 clips, 1 layer, 1 turn: checks the program only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.quick:
        arguments.steps, arguments.rounds = 2, 1
    with tempfile.TemporaryDirectory() as name:
        size = {"clips": 2, "layers": 1} if arguments.quick else {"clips": 8, "layers": 6}
        config = demo_config(Path(name) / "data", **size)
        config.trainer.callbacks = monitors()
        config.trainer.max_iter = 2 * arguments.steps * (arguments.rounds + 1)
        config.scheduler.warm_up_steps = [1]
        trainer = Trainer(config, run_folder=Path(name) / "run")
        blocks = Blocks(trainer, arguments.steps)
        blocks.turn(watched_first=True)  # warms up, and fills the latent cache
        turns = [blocks.turn(watched_first=number % 2 == 1) for number in range(arguments.rounds)]
        blocks.close()
    watched, plain = (sum(turn[kind][0] for turn in turns) for kind in (True, False))
    watched_cpu, plain_cpu = (sum(turn[kind][1] for turn in turns) for kind in (True, False))
    cost, cpu = watched / plain - 1, watched_cpu / plain_cpu - 1
    single = [turn[False][0] for turn in turns]
    spread = statistics.pstdev(single) / statistics.fmean(single)
    count = arguments.steps * arguments.rounds
    print(f"a step without        {1000 * plain / count:.1f} ms (blocks vary by {spread:.1%})")
    print(f"a step with           {1000 * watched / count:.1f} ms: {cost:+.2%} (goal: at most {GOAL:.0%})")
    print(f"CPU time              {cpu:+.2%}")
    return 0 if arguments.quick or cost <= GOAL else 1


class Blocks:
    """Steps of one run, with its callbacks and without."""

    def __init__(self, trainer: Trainer, steps: int) -> None:
        self.trainer, self.steps, self.callbacks = trainer, steps, trainer.callbacks
        trainer._call("on_run_start")
        self.batches = iter(trainer.state.loader)
        trainer._call("on_train_start")

    def turn(self, *, watched_first: bool) -> dict[bool, tuple[float, float]]:
        """(seconds, CPU seconds) of a block, by whether it is watched."""
        return {watched: self.block(watched=watched) for watched in (watched_first, not watched_first)}

    def block(self, *, watched: bool) -> tuple[float, float]:
        self.trainer.callbacks = self.callbacks if watched else {}
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(self.steps):
            self.trainer.training_step(self.batches)
        return time.perf_counter() - start, time.process_time() - cpu

    def close(self) -> None:
        self.trainer.callbacks = self.callbacks
        self.trainer._call("on_train_end")


if __name__ == "__main__":
    sys.exit(main())
