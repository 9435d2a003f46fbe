"""Folders of torch.distributed.checkpoint (DCP): tensors only, read and written by any number of ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.distributed.peers import Peers, SideGroup

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner


COPY_AHEAD = 10_000_000
"""Bytes that are copied from a GPU while others are written; DCP's default."""


def planner_of(state: Mapping[str, Any]) -> SavePlanner:
    """DCP's own plan for saving tensors: each shard once, and a whole tensor by one rank."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(state))
    return planner


def save_part(
    folder: Path,
    planner: SavePlanner,
    peers: Peers | None = None,
    *,
    single_file_per_rank: bool = True,
    staged: bool = False,
) -> None:
    """Writes the tensors of a planner, which is set up, to a DCP folder; every file is synced to disk.

    The steps of `torch.distributed.checkpoint.save`, with `peers` instead of a process group, so that they can be taken
    where there is none. `peers` None: this process is alone. `staged`: the tensors are in main memory, and CUDA is not
    to be used, as in a process that was forked.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    peers = peers or SideGroup(0, 1)
    writer = FileSystemWriter(
        folder,
        single_file_per_rank=single_file_per_rank,
        sync_files=True,
        per_thread_copy_ahead=0 if staged else COPY_AHEAD,
    )
    metadata: Metadata | None = None

    def plan_all() -> list[SavePlan]:
        nonlocal metadata
        plans, metadata = planner.create_global_plan(proposals)
        return writer.prepare_global_plan(plans)

    def finish() -> None:
        assert metadata is not None
        writer.finish(metadata, results)

    writer.set_up_storage_writer(peers.is_main)
    proposals = peers.gather(lambda: writer.prepare_local_plan(planner.create_local_plan()))
    plan = peers.scatter(plan_all)
    results = peers.gather(lambda: writer.write_data(planner.finish_plan(plan), planner).value())
    peers.run_on_main(finish)


def load_part(folder: Path, state: dict[str, Any], *, no_dist: bool) -> None:
    """Reads a DCP folder into the tensors of `state`, in place."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # a single process knows
    load(state, storage_reader=FileSystemReader(folder), no_dist=no_dist)


def stored_shapes(folder: Path) -> dict[str, list[int]]:
    """Name and shape of every tensor in a DCP folder."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name: list(entry.size) for name, entry in entries.items() if hasattr(entry, "size")}
