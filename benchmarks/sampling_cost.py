"""What do samples cost during training, at their defaults?

A run of a recipe is trained with its samples, and their time is compared with that of the complete run, from before the
first step to the end, in seconds and in CPU seconds of the process. Goal: at most `max_time_fraction`, 3 %.

    python benchmarks/sampling_cost.py [RECIPE] [--data DIR] [--cache DIR] [--threads 1] [--quick] [SETTING=VALUE ...]

Without `--data`, clips of moving shapes are made. With `--cache`, latents are kept there: a second measurement with the
same folder is that of a run which encodes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import torch

from worldsmith.config.load import load
from worldsmith.demo.moving_shapes import MovingShapes
from worldsmith.training.callbacks.samples.draw_samples import DrawSamples
from worldsmith.training.trainer import Trainer

CALLBACK = "EveryNDrawSample"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="moving_shapes")
    parser.add_argument("settings", nargs="*", help="SETTING=VALUE of the run, such as trainer.max_iter=150")
    parser.add_argument("--data", help="the folder of the clips (DATASET_PATH)")
    parser.add_argument("--cache", help="the folder of the latent cache")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--quick", action="store_true", help="2 clips, 2 steps: checks the program only")
    arguments = parser.parse_intermixed_args()
    torch.set_num_threads(arguments.threads)
    settings = [
        *arguments.settings,
        *(["trainer.max_iter=2", "scheduler.warm_up_steps=[1]"] if arguments.quick else []),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not arguments.data:
            MovingShapes(clips=2 if arguments.quick else 64, val_clips=0).make(folder / "data")
        os.environ["DATASET_PATH"] = arguments.data or str(folder / "data")
        os.environ["WORLDSMITH_LATENT_CACHE"] = arguments.cache or str(folder / "cache")
        config = cast(Trainer.Config, load(arguments.recipe, settings).tree)
        trainer = Trainer(config, run_folder=folder / "run")
        watch = Watch(cast(DrawSamples, trainer.callbacks[CALLBACK]))
        start, cpu = time.perf_counter(), time.process_time()
        trainer.train()
        total, total_cpu = time.perf_counter() - start, time.process_time() - cpu
        drawings = len(list((folder / "run" / CALLBACK).glob("step_*")))
    cost, cpu_cost = watch.seconds / total, watch.cpu / total_cpu
    print(f"the run               {total:.1f} s, {total_cpu:.1f} CPU s, {config.trainer.max_iter} steps")
    print(f"{drawings} drawings of samples {watch.seconds:.1f} s, {watch.cpu:.1f} CPU s")
    print(f"cost                  {cost:.2%} of the time, {cpu_cost:.2%} of the CPU time (goal: at most 3 %)")
    return 0 if arguments.quick or cost <= 0.03 else 1


class Watch:
    """Adds up the time of the drawings of a callback."""

    def __init__(self, callback: DrawSamples) -> None:
        self.seconds = self.cpu = 0.0
        self.draw, callback._draw_and_write = callback._draw_and_write, self  # type: ignore[method-assign]

    def __call__(self, trainer: Trainer) -> None:
        start, cpu = time.perf_counter(), time.process_time()
        self.draw(trainer)
        self.seconds += time.perf_counter() - start
        self.cpu += time.process_time() - cpu


if __name__ == "__main__":
    sys.exit(main())
