"""Folders of torch.distributed.checkpoint (DCP): they contain tensors only, and any number of ranks can read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.distributed.coordination_group import Peers, SideGroup

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner


METADATA = ".metadata"
"""File that DCP writes last: a folder that contains it is complete."""


COPY_AHEAD = 10_000_000
"""Max bytes that are copied from a GPU ahead of the disk write: default `per_thread_copy_ahead` of DCP."""


def planner_of(state: Mapping[str, Any]) -> SavePlanner:
    """Returns DCP's default save planner for the tensors in `state` (tensor name -> tensor or DTensor).

    With this planner, each shard of a DTensor is written once, and a plain tensor by one rank only.
    """
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
    """Writes tensors to a DCP folder and flushes every file to disk. Collective over `peers`.

    The function performs the steps of `torch.distributed.checkpoint.save` with `peers` instead of a process group, so
    it also works in a process without one.

    Args:
        folder: Folder to create.
        planner: Save planner with the tensors to write, such as the result of `planner_of`.
        peers: Ranks that write the folder together; None: this process only.
        single_file_per_rank: Whether each rank writes one file; False: one file per tensor.
        staged: Whether the tensors are in host RAM and CUDA must not be used, as in a forked process.

    Raises:
        FileNotFoundError: If rank 0 does not see a file that another rank wrote.
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
        for name in sorted({result.storage_data.relative_path for written in results for result in written}):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"process 0 does not see {folder / name}: it must be on storage that all nodes share"
                )
        writer.finish(metadata, results)

    writer.set_up_storage_writer(peers.is_main)
    proposals = peers.gather(lambda: writer.prepare_local_plan(planner.create_local_plan()))
    plan = peers.scatter(plan_all)
    results = peers.gather(lambda: writer.write_data(planner.finish_plan(plan), planner).value())
    peers.run_on_main(finish)


def checkpoint_of_model_folder(folder: Path) -> Path:
    """Returns the checkpoint folder if `folder` is its subfolder `model/`; otherwise returns `folder` itself."""
    return folder.parent if folder.name == "model" and (folder / METADATA).is_file() else folder
