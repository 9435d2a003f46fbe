"""Runs on two ranks that draw samples: `python drawing_ranks.py FOLDER`, with the worlds in it. See
test_drawing_on_ranks.py and launch.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import reasoner_runs
import tiny_runs
import torch
from imported_once import import_for_videos
from launch import fork_ranks

from worldsmith.distributed.world import stop_world
from worldsmith.training.callbacks.samples import draw_samples
from worldsmith.training.callbacks.samples.draw_answers import DrawAnswers
from worldsmith.training.callbacks.samples.draw_samples import DrawnSample
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


class Failing(Trainer):
    """A run whose forward passes for samples of the EMA weights fail on all ranks, in the middle of a layer; those for
    samples of the raw weights fail on rank 1, after the last one."""

    def train(self) -> Outcome:
        drawing: Any = self.callbacks[NAME]
        draw = drawing.draw

        def fails_inside(module: torch.nn.Module, args: Any) -> None:
            if self.doing == "sampling" and drawing.parts_done == 1 and self.iteration == 1:
                raise torch.OutOfMemoryError("no memory is left")

        def fails_at_the_end(trainer: Trainer) -> Iterator[list[DrawnSample]]:
            yield from draw(trainer)
            if self.world.rank == 1 and drawing.parts_done == 1 and self.iteration == 2:
                raise torch.OutOfMemoryError("no memory is left at the end")

        next(iter(self.model.parts().layers)).register_forward_pre_hook(fails_inside)
        drawing.draw = fails_at_the_end
        outcome = super().train()
        assert drawing.failed == 2
        return outcome


class FailingAlone(Trainer):
    """A run whose rank 1 fails in a forward pass for samples, while rank 0 waits for it in the next one."""

    def train(self) -> Outcome:
        def fails(module: torch.nn.Module, args: Any) -> None:
            if self.doing == "sampling" and self.world.rank == 1:
                raise torch.OutOfMemoryError("no memory is left on rank 1")

        draw_samples.AGREEMENT = timedelta(seconds=3)
        next(iter(self.model.parts().layers)).register_forward_pre_hook(fails)
        return super().train()


def fail_alone(folder: Path) -> None:
    """Every rank ends with an error, in a time that does not depend on what the others do."""
    torch.set_num_threads(1)
    try:
        FailingAlone(videos(folder), run_folder=folder / "alone").train()
    except RuntimeError as error:  # on rank 1 its own, on rank 0 that rank 1 has gone
        (folder / f"alone_{os.environ['RANK']}.txt").write_text(f"{type(error).__name__}: {error}")


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
        "failing": videos(folder),
        "answers": answers(folder),
        "answers_bfloat16": answers(folder, precision="bfloat16"),
    }
    for name, config in runs.items():
        config.trainer.max_iter, config.scheduler.warm_up_steps = 2, [1]
        kind = {"undecodable": Undecodable, "failing": Failing}.get(name, Trainer)
        kind(config, run_folder=folder / name).train()
    stop_world()


if __name__ == "__main__":
    import_for_videos()
    job = fail_alone if sys.argv[2:] == ["alone"] else main
    sys.exit(fork_ranks(partial(job, Path(sys.argv[1]))))
