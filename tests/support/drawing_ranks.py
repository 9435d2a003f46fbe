"""Runs on two ranks that draw samples: `python drawing_ranks.py FOLDER`, with the worlds in it. See
test_drawing_on_ranks.py and launch.py."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import reasoner_runs
import tiny_runs
import torch
from imported_once import import_for_videos
from launch import fork_ranks

from worldsmith.distributed.world import stop_world
from worldsmith.training.callbacks.samples.draw_answers import DrawAnswers
from worldsmith.training.callbacks.samples.draw_videos import DrawVideos
from worldsmith.training.trainer import Outcome, Trainer

NAME = "EveryNDrawSample"


def videos(folder: Path, *, enabled: bool = True, context: int = 1) -> Trainer.Config:
    config = tiny_runs.tiny_config(folder / "clips", steps=2, cache=False)
    config.model.config.parallelism.context_parallel_shard_degree = context
    config.trainer.callbacks[NAME] = DrawVideos.Config(
        enabled=enabled, every=1, samples=2, steps=2, guidance=[3.0], weights=["live", "ema"]
    )
    return config


def without_interval(folder: Path) -> Trainer.Config:
    """With as many samples as all of the time allows."""
    config = videos(folder)
    config.trainer.callbacks[NAME] = DrawVideos.Config(samples=2, steps=2, max_time_fraction=1.0)
    return config


class Undecodable(Trainer):
    """A run whose rank 0 cannot decode anything, as without memory."""

    def train(self) -> Outcome:
        def fails(latents: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("no memory is left")

        self.model.decode = fails  # type: ignore[attr-defined]
        return super().train()


def answers(folder: Path, *, precision: str = "float32") -> Trainer.Config:
    config = reasoner_runs.reasoner_config(folder / "chats", steps=2)
    config.model.config.precision = precision  # type: ignore[assignment]
    config.trainer.callbacks[NAME] = DrawAnswers.Config(every=2, samples=3, max_new_tokens=5, weights=["live", "ema"])
    return config


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    runs = {
        "videos": videos(folder),
        "without": videos(folder, enabled=False),
        "shared": videos(folder, context=2),
        "without_interval": without_interval(folder),
        "undecodable": without_interval(folder),
        "answers": answers(folder),
        "answers_bfloat16": answers(folder, precision="bfloat16"),
    }
    for name, config in runs.items():
        config.trainer.max_iter, config.scheduler.warm_up_steps = 2, [1]
        kind = Undecodable if name == "undecodable" else Trainer
        kind(config, run_folder=folder / name).train()
    stop_world()


if __name__ == "__main__":
    import_for_videos()
    sys.exit(fork_ranks(partial(main, Path(sys.argv[1]))))
