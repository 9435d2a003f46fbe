"""Checkpoints of a run: `iter_<9 digits>/{model,optim,scheduler,trainer,dataloader}` and `latest_checkpoint.txt`.

The first four are torch.distributed.checkpoint folders that hold tensors only. A checkpoint is written into a hidden
folder, synced to disk, and renamed when it is complete; then the pointer moves. `manifest.json` holds the size and
the CRC-32 of every file, so that a damaged checkpoint is found before anything is read from it.
"""

from __future__ import annotations

import json
import logging
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from worldsmith.checkpoint import atomic
from worldsmith.config import Configurable
from worldsmith.config.errors import UserError
from worldsmith.config.ranges import Count
from worldsmith.distributed.world import World

logger = logging.getLogger(__name__)

POINTER = "latest_checkpoint.txt"
MANIFEST = "manifest.json"


class Checkpointer(Configurable):
    """Saves and restores a run in one folder. All ranks call every method together."""

    class Config(Configurable.Config):
        load_path: str | None = None
        """Weights to start a new run from: a run folder, an iter folder, or a model folder. None: no weights."""
        init: Literal["pretrained", "scratch"] = "pretrained"
        """What a new run without load_path means: "pretrained" is an error, "scratch" starts from random weights."""
        save_iter: Count = 100
        """Save every this many optimizer steps, and always after the last one."""
        keys_to_skip_loading: list[str] = field(default_factory=list)
        """Tensors of load_path whose name contains one of these are not loaded; net_ema.* then starts from net.*."""
        keep_latest_k: Count | None = None
        """How many checkpoints to keep, the newest first. None: all."""

        def check(self) -> None:
            if self.load_path is None and self.init != "scratch":
                raise ValueError(
                    "load_path is not set: give the weights to start from, "
                    'or write checkpoint.init = "scratch" to train from random weights'
                )

    def __init__(self, config: Config, *, folder: Path, world: World | None = None) -> None:
        self.config = config
        self.folder = folder
        self.world = world or World()
        if self.world.is_main:
            folder.mkdir(parents=True, exist_ok=True)
            leftovers = atomic.remove_leftovers(folder)
            if leftovers:
                logger.info("removed what an interrupted save left in %s: %s", folder, ", ".join(leftovers))
        self.world.barrier()

    def save(
        self,
        iteration: int,
        parts: Mapping[str, Mapping[str, Any]],
        *,
        dataloader: Mapping[str, Any] | None = None,
        texts: Mapping[str, str] | None = None,
    ) -> Path:
        """Writes the checkpoint of `iteration` and returns its folder.

        `parts` maps model, optim, scheduler and trainer to their tensors; `dataloader` is this rank's position (JSON);
        `texts` are small files to keep beside them, such as config.yaml.
        """
        target = self.folder / folder_name(iteration)
        aside = self.folder / f"{atomic.SAVING}{target.name}"
        if self.world.is_main:
            (aside / "dataloader").mkdir(parents=True)
            for name, text in (texts or {}).items():
                (aside / name).write_text(text, encoding="utf-8")
        self.world.barrier()
        for part, state in parts.items():
            save_part(aside / part, state, no_dist=self.world.size == 1)
        if dataloader is not None:
            (aside / "dataloader" / f"rank_{self.world.rank}.json").write_text(json.dumps(dataloader), encoding="utf-8")
        self.world.barrier()
        self._write_manifest(aside)
        if self.world.is_main:
            atomic.publish_folder(aside, target)
            atomic.write_text(self.folder / POINTER, f"{target.name}\n")
            self._remove_old(target)
        self.world.barrier()
        return target

    def latest(self) -> Path | None:
        """The checkpoint to resume from: the one that the pointer names, or else the newest complete one.

        None when the folder has no checkpoint. A damaged one is passed over with a message. Raises UserError
        when there are checkpoints and none is complete.
        """
        newest: Path | None = self.world.broadcast(self._find_latest() if self.world.is_main else None)
        return newest

    def load_part(self, checkpoint: Path, part: str, state: dict[str, Any]) -> None:
        """Reads `part` of a checkpoint into the tensors of `state`, in place."""
        load_part(checkpoint / part, state, no_dist=self.world.size == 1)

    def load_dataloader(self, checkpoint: Path) -> dict[str, Any] | None:
        """This rank's saved data position; None when the checkpoint has none for this rank."""
        path = checkpoint / "dataloader" / f"rank_{self.world.rank}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def _find_latest(self) -> Path | None:
        found = sorted((path for path in self.folder.glob("iter_*") if path.is_dir()), reverse=True)
        pointer = self.folder / POINTER
        if not found:
            if pointer.exists():
                raise UserError(
                    f"{pointer} names a checkpoint, but none is there; move this folder away to start the run anew"
                )
            return None
        named = self.folder / pointer.read_text(encoding="utf-8").strip() if pointer.exists() else found[0]
        problems = []
        if named not in found:
            problems.append(f"{named.name}: named by {POINTER}, but there is no such folder")
        for candidate in sorted(found, key=lambda path: path != named):
            problem = find_damage(candidate)
            if problem is None:
                for line in problems:
                    logger.warning("DAMAGED CHECKPOINT passed over: %s", line)
                if problems:
                    logger.warning("the run goes on from %s instead", candidate.name)
                return candidate
            problems.append(f"{candidate.name}: {problem}")
        raise UserError(
            f"no checkpoint in {self.folder} is complete: {'; '.join(problems)}. "
            "Move this folder away to start the run anew."
        )

    def _write_manifest(self, aside: Path) -> None:
        """Every rank sums up its share of the files; rank 0 writes the list."""
        files = sorted(path for path in aside.rglob("*") if path.is_file())
        share = {str(path.relative_to(aside)): summary(path) for path in files[self.world.rank :: self.world.size]}
        shares = self.world.gather(share)
        if self.world.is_main:
            merged = {name: entry for part in shares for name, entry in part.items()}
            text = json.dumps({"files": dict(sorted(merged.items()))}, indent=1)
            (aside / MANIFEST).write_text(text, encoding="utf-8")

    def _remove_old(self, newest: Path) -> None:
        if self.config.keep_latest_k is None:
            return
        others = sorted((p for p in self.folder.glob("iter_*") if p.is_dir() and p != newest), reverse=True)
        for path in others[self.config.keep_latest_k - 1 :]:
            atomic.remove_folder(path)


def folder_name(iteration: int) -> str:
    return f"iter_{iteration:09d}"


def folder_iteration(folder: Path) -> int:
    return int(folder.name.removeprefix("iter_"))


def save_part(folder: Path, state: Mapping[str, Any], *, no_dist: bool) -> None:
    """Writes tensors to a torch.distributed.checkpoint folder; every file is synced to disk."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with quiet_alone():
        save(dict(state), storage_writer=FileSystemWriter(folder, sync_files=True), no_dist=no_dist)


def load_part(folder: Path, state: dict[str, Any], *, no_dist: bool) -> None:
    """Reads a torch.distributed.checkpoint folder into the tensors of `state`, in place."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with quiet_alone():
        load(state, storage_reader=FileSystemReader(folder), no_dist=no_dist)


@contextmanager
def quiet_alone() -> Iterator[None]:
    """PyTorch warns at every save and load that a single process is a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def stored_shapes(folder: Path) -> dict[str, list[int]]:
    """Name and shape of every tensor in a torch.distributed.checkpoint folder."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name: list(entry.size) for name, entry in entries.items() if hasattr(entry, "size")}


def summary(path: Path) -> list[int]:
    """[size in bytes, CRC-32] of a file."""
    size = crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            size += len(block)
            crc = zlib.crc32(block, crc)
    return [size, crc]


def find_damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint folder, in words; None when every file is there and unchanged."""
    manifest = checkpoint / MANIFEST
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return f"it has no {MANIFEST}"
    except (ValueError, KeyError, TypeError):
        return f"its {MANIFEST} cannot be read"
    for name, expected in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected[0]:
            return f"{name} has {path.stat().st_size} bytes, not {expected[0]}"
        if summary(path) != expected:
            return f"the content of {name} has changed (CRC-32)"
    return None
