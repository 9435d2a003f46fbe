"""Two ranks that should not train together: `ranks_agree.py WORLD FOLDER`. See test_ranks_agree.py.

Writes what each rank was told to FOLDER/<case>_<rank>.txt.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import imported_once  # noqa: F401
import torch
import toy_runs
from launch import fork_ranks

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.distributed.world import start_world, stop_world
from worldsmith.training.trainer import Trainer


def config(world: Path) -> Trainer.Config:
    config = toy_runs.toy_config(world, steps=1)
    config.trainer.grad_accum_iter = 1
    config.scheduler.cycle_lengths = [8]
    return config


def other_settings(world: Path, folder: Path, rank: int) -> None:
    tree = config(world)
    if rank == 1:
        tree.trainer.max_iter, tree.optimizer.lr = 6, 0.5
    Trainer(tree, run_folder=folder / "other_settings")


def other_data(world: Path, folder: Path, rank: int) -> None:
    """The same path on both nodes, and another file there."""
    file = folder / f"data_{rank}" / toy_runs.ROWS
    shutil.copytree(world, file.parent)
    if rank == 1:
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    tree = config(world)
    tree.dataloader_train.dataset.path = str(file)
    trainer_module.require_same_config = lambda world, config: None  # the paths differ on this one machine
    Trainer(tree, run_folder=folder / "other_data")


def other_folders(world: Path, folder: Path, rank: int) -> None:
    """As on two nodes without shared storage; node 1 knows the folder from an earlier run."""
    run = folder / f"node_{rank}"
    (run / "checkpoints").mkdir(parents=True)
    Trainer(config(world), run_folder=run)


def no_name(world: Path, folder: Path, rank: int) -> None:
    """A new run in a folder after the time, which passes between the two ranks."""
    tree = config(world)
    tree.job.name = ""
    os.environ["WORLDSMITH_OUTPUT_ROOT"] = str(folder / "named_by_time")
    if rank == 1:
        time.sleep(1.1)
    trainer = Trainer(tree)
    trainer.train()
    (folder / f"trained_in_{rank}.txt").write_text(f"{trainer.run_folder} {trainer.config.job.name}")


def held_folder(world: Path, folder: Path, rank: int) -> None:
    Trainer(config(world), run_folder=folder / "held")


def unseen_files(world: Path, folder: Path, rank: int) -> None:
    """A save into folders that only look the same: nothing may be published, and nothing removed."""
    node = folder / f"unseen_{rank}"
    (node / ".saving_iter_000000002").mkdir(parents=True)
    place = start_world()
    one = Checkpointer.Config(init="scratch", keep_latest_k=1).build(folder=node, world=place)
    if rank == 0:
        (node / "iter_000000001").mkdir()
    one.save(2, {"model": {f"net.{rank}": torch.ones(3)}}, dataloader={"position": 1})


trainer_module = sys.modules[Trainer.__module__]
CASES: list[Callable[[Path, Path, int], None]] = [
    other_settings, other_folders, held_folder, other_data, unseen_files, no_name,
]  # fmt: skip


def main(world: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    rank = start_world().rank
    agree = trainer_module.require_same_config
    for case in CASES:
        try:
            case(world, folder, rank)
            told = "nothing"
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        trainer_module.require_same_config = agree
        (folder / f"{case.__name__}_{rank}.txt").write_text(told)
    stop_world()


if __name__ == "__main__":
    sys.exit(fork_ranks(partial(main, Path(sys.argv[1]), Path(sys.argv[2]))))
