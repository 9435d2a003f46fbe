"""Uploads and a resume from an object store on two ranks: `python store_ranks.py WORLD FOLDER`."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from pathlib import Path

import imported_once  # noqa: F401
import toy_runs
from launch import fork_ranks
from object_store import ObjectStore

from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.config.errors import UserError
from worldsmith.distributed.world import stop_world
from worldsmith.training.trainer import Trainer


def store_config(world: Path, *, steps: int = 8, upload: bool = True) -> Trainer.Config:
    config = toy_runs.toy_config(world, save_iter=4)
    config.trainer.max_iter = steps
    config.checkpoint.upload_to = "s3://bucket/ranks" if upload else None
    return config


def run(world: Path, folder: Path) -> None:
    """Four steps, whose folder is removed, then all eight; then failures that all ranks must see."""
    Trainer(store_config(world, upload=False), run_folder=folder / "whole/run").train()
    first = Trainer(store_config(world, steps=4), run_folder=folder / "first/run")
    first.train()
    if first.world.is_main:
        shutil.rmtree(folder / "first")
    first.world.barrier()
    second = Trainer(store_config(world), run_folder=folder / "second/run")
    assert second.iteration == 4
    second.train()
    store = ObjectStore(os.environ["AWS_ENDPOINT_URL"])
    if first.world.is_main:
        shutil.copytree(folder / "second", folder / "longer")
    first.world.barrier()
    store.fail(denied="iter_000000012", writes=True, only_writes=True)
    try:
        Trainer(store_config(world, steps=12), run_folder=folder / "longer/run").train()
    except SaveError as error:
        (folder / f"save_error_{first.world.rank}").write_text(str(error))
    first.world.barrier()
    store.fail(denied="distcp")
    try:
        Trainer(store_config(world), run_folder=folder / "third/run")
    except UserError as error:
        (folder / f"user_error_{first.world.rank}").write_text(str(error))
    stop_world()


if __name__ == "__main__":
    sys.exit(fork_ranks(partial(run, *map(Path, sys.argv[1:]))))
