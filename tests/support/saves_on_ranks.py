"""One rank of several that save tensors together: `saves_on_ranks.py FOLDER`. See test_saves_on_ranks.py.

Writes what PyTorch itself saves to `theirs`, the saves of the Checkpointer to `checkpoints`, and what each save said to
`said_<rank>.json`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import imported_once  # noqa: F401
import psutil
import torch
import torch.distributed.checkpoint
from launch import fork_ranks
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from worldsmith.checkpoint.dcp import dcp_folder as dcp
from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.distributed.world import start_world, stop_world

WAITED, BACKGROUND, BROKEN, WITHOUT_ONE, AGAIN, DIES, TWICE, LAST = range(1, 9)
"""The saves: two good ones; one that fails on rank 2; one after the death of rank 3's process and the one after it;
one in whose middle rank 1's process dies; one that fails on rank 2 while rank 0's process dies waiting for it; and the
one after it, which rank 2's process writes beside the threads of the others."""


def make_parts(rank: int, scale: float = 1.0) -> dict[str, dict[str, Any]]:
    """Two replicas of two shards, some uneven or empty, a column, whole tensors, and one that only this rank has."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    placements = [Replicate(), Shard(0)]
    torch.manual_seed(0)
    whole = {"net.even": torch.randn(8, 3), "net.uneven": torch.randn(5, 3), "net.short": torch.randn(1, 3)}
    whole |= {"net.half": torch.randn(6).bfloat16(), "net.column": torch.randn(3, 4).t()}
    model: dict[str, Any] = {
        name: distribute_tensor(tensor * scale, mesh, placements) for name, tensor in whole.items()
    }
    model["net.whole"] = torch.randn(3, 3) * scale
    return {"model": model, "trainer": {"iteration": torch.tensor(7), f"rng_{rank}": torch.full((5,), rank)}}


def break_saves(rank: int) -> None:
    """Must come before the Checkpointer, whose process inherits it."""
    save_part = dcp.save_part

    def breaking(folder: Path, *arguments: Any, **settings: Any) -> None:
        iteration = int(folder.parent.name[-9:])
        if (rank, iteration) == (2, BROKEN):
            raise OSError(28, "No space left on device")
        if (rank, iteration) == (2, TWICE):
            time.sleep(1)
            raise KeyError("a mistake")
        if (rank, iteration) == (0, TWICE):
            threading.Timer(0.5, os._exit, [0]).start()
        save_part(folder, *arguments, **settings)
        if (rank, iteration) == (1, DIES):
            os._exit(0)

    dcp.save_part = breaking  # type: ignore[assignment]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    world = start_world()
    parts = make_parts(world.rank)
    for part, state in parts.items():
        writer = FileSystemWriter(folder / "theirs" / part, sync_files=False)
        torch.distributed.checkpoint.save(dict(state), storage_writer=writer)
    break_saves(world.rank)
    one = Checkpointer.Config(init="scratch").build(folder=folder / "checkpoints", world=world)
    said = {}
    for iteration in range(WAITED, LAST + 1):
        if iteration == WITHOUT_ONE and world.rank == 3:
            (writer_process,) = psutil.Process().children()
            writer_process.kill()
            writer_process.wait()
        try:
            one.save(iteration, parts, dataloader={"next": iteration}, background=iteration != WAITED)
            change(parts)
            one.wait_for_background_save()
            said[iteration] = "saved"
        except SaveError as error:
            said[iteration] = str(error)
        parts = make_parts(world.rank)
    (folder / f"said_{world.rank}.json").write_text(json.dumps(said))
    world.barrier()
    stop_world()


def change(parts: dict[str, dict[str, Any]]) -> None:
    """What the training does while a save is written."""
    for state in parts.values():
        for tensor in state.values():
            (tensor.to_local() if isinstance(tensor, DTensor) else tensor).zero_()


if __name__ == "__main__":
    sys.exit(fork_ranks(partial(main, Path(sys.argv[1]))))
