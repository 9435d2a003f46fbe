"""Folders of torch.distributed.checkpoint (DCP): tensors only, read and written by any number of ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
    from torch.distributed.checkpoint.storage import WriteResult
    from torch.futures import Future

    from worldsmith.checkpoint.writer_process import WriterProcess


def save_part(
    folder: Path,
    state: Mapping[str, Any],
    *,
    no_dist: bool,
    process_group: ProcessGroup | None = None,
    process: WriterProcess | None = None,
) -> None:
    """Writes tensors to a DCP folder; every file is synced to disk.

    `process_group` None: the default group. With `process`, that one writes the tensors' files.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    be_quiet_alone()
    writer = file_writer(folder)
    if process is not None:
        writer.write_data = partial(write_elsewhere, process, folder)
    save(dict(state), storage_writer=writer, no_dist=no_dist, process_group=process_group)


def file_writer(folder: Path) -> Any:
    """DCP's writer as it is used here: one file for each rank, synced, and no use of CUDA (tensors are on the CPU)."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    return FileSystemWriter(folder, sync_files=True, per_thread_copy_ahead=0)


def write_elsewhere(
    process: WriterProcess, folder: Path, plan: SavePlan, planner: SavePlanner
) -> Future[list[WriteResult]]:
    """A storage writer's `write_data`, done by another process."""
    from torch.futures import Future

    done: Future[list[WriteResult]] = Future()
    done.set_result(process.write(folder, plan, planner))
    return done


def load_part(folder: Path, state: dict[str, Any], *, no_dist: bool) -> None:
    """Reads a DCP folder into the tensors of `state`, in place."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    be_quiet_alone()
    load(state, storage_reader=FileSystemReader(folder), no_dist=no_dist)


def stored_shapes(folder: Path) -> dict[str, list[int]]:
    """Name and shape of every tensor in a DCP folder."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name: list(entry.size) for name, entry in entries.items() if hasattr(entry, "size")}


def be_quiet_alone() -> None:
    """PyTorch warns at every save and load that a single process is a single process.

    For the whole process: a filter that is put back afterwards is not safe while a save runs in a thread.
    """
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
