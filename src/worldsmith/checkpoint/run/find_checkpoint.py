"""Finds the checkpoints of a run: folder names, the latest, the best, and the one to resume from."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.sources.verify import find_checkpoint_damage
from worldsmith.config.errors import UserError
from worldsmith.files import atomic
from worldsmith.files.checksum_manifest import MANIFEST
from worldsmith.files.locks import lease

if TYPE_CHECKING:
    from worldsmith.distributed.world import World

logger = logging.getLogger(__name__)

POINTER = "latest_checkpoint.txt"
BEST_POINTER = "best_checkpoint.txt"
BEST = "best"
"""Name that selects the best checkpoint of a run in a path: `RUN/checkpoints/best`."""
NAME = re.compile(r"iter_(\d{9,})")


def folder_name(iteration: int) -> str:
    """Returns the name of the folder of a checkpoint, such as `iter_000000100`."""
    return f"iter_{iteration:09d}"


def folder_iteration(folder: Path) -> int:
    """Returns the number of optimizer steps from the name of a checkpoint folder: `iter_000000100` → 100."""
    return int(folder.name.removeprefix("iter_"))


def checkpoint_folders(parent: Path) -> list[Path]:
    """Returns the checkpoint folders in `parent`, the newest first. Folders with other names are ignored."""
    found = [path for path in parent.glob("iter_*") if NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=folder_iteration, reverse=True)


def read_best(parent: Path) -> Path | None:
    """Returns the folder that `parent/best_checkpoint.txt` names as the best checkpoint.

    None if the file is missing or not readable, or if the folder does not exist.
    """
    try:
        name = (parent / BEST_POINTER).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return parent / name if NAME.fullmatch(name) and (parent / name).is_dir() else None


def best_of(path: str) -> str:
    """Resolves `RUN/checkpoints/best` to the best checkpoint; other paths are returned unchanged.

    Raises:
        FileNotFoundError: If the run has checkpoints but no best checkpoint is recorded.
    """
    place = Path(path)
    if place.name != BEST or place.exists() or not checkpoint_folders(place.parent):
        return path
    best = read_best(place.parent)
    if best is None:
        raise FileNotFoundError(f"{path}: the run has recorded no best checkpoint; set checkpoint.keep_best")
    return str(best)


def go_back_to_best(parent: Path, iteration: int, best: int) -> None:
    """Corrects the pointer to the best checkpoint when a run resumes from an earlier step than that checkpoint.

    Args:
        parent: Folder of the checkpoints.
        iteration: Step from which the run resumes.
        best: Step of the best checkpoint up to `iteration`, to which the pointer is set; if the folder of that
            checkpoint does not exist, the pointer is emptied, which also clears the pointer in an object store.
    """
    named = read_best(parent)
    if named is None or folder_iteration(named) <= iteration:
        return
    before = parent / folder_name(best)
    atomic.write_text(parent / BEST_POINTER, f"{before.name}\n" if before.is_dir() else "\n")


@dataclass(frozen=True, slots=True)
class Pointer:
    """Content of `latest_checkpoint.txt`; both fields are None without that file."""

    checkpoint: Path | None = None
    """Folder of the checkpoint that the file names, which may not exist; None if the file has no valid name."""
    problem: str | None = None
    """Description of the problem if the file is damaged or the folder does not exist; else None."""


@dataclass(frozen=True, slots=True)
class ResumeCandidates:
    """The checkpoints of a run in the order in which a resume tries them, and the content of the latest pointer."""

    checkpoints: list[Path]
    """Folders in order: the checkpoint that the pointer names, then earlier ones from the newest to the oldest, then
    later ones, which exist if the run was resumed from an earlier checkpoint."""
    pointer: Pointer


def read_pointer(parent: Path) -> Pointer:
    """Reads `parent/latest_checkpoint.txt`, which names the latest checkpoint."""
    try:
        name = (parent / POINTER).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return Pointer()
    except (OSError, ValueError) as error:
        return Pointer(problem=f"{POINTER} cannot be read: {error}")
    if not NAME.fullmatch(name):
        return Pointer(problem=f"{POINTER} contains {name[:40]!r}, which is not the name of a checkpoint")
    missing = None if (parent / name).is_dir() else f"{name}: named by {POINTER}, but this folder does not exist"
    return Pointer(parent / name, missing)


def list_candidates(parent: Path) -> ResumeCandidates:
    """Lists the checkpoints in `parent` in the order in which a resume tries them."""
    found, pointer = checkpoint_folders(parent), read_pointer(parent)
    named = pointer.checkpoint
    if named is not None:
        found.sort(key=lambda path: is_later(path, named))
    return ResumeCandidates(found, pointer)


def find_latest(parent: Path, world: World, *, weights_only: bool = False, own: bool = False) -> Path | None:
    """Finds the checkpoint to resume from: the first one in the order of `list_candidates` that is intact. Collective.

    The ranks divide the verification of the checksums. Damaged checkpoints are skipped with a warning.

    Args:
        parent: Folder of the checkpoints.
        world: Ranks of the run.
        weights_only: Whether only the files that are required to read the weights are verified.
        own: Whether this process trains the run. False: another process may train the run, so the returned checkpoint
            is locked against removal until this process ends.

    Returns:
        Folder of the checkpoint; None if there is no checkpoint.

    Raises:
        UserError: If checkpoints exist, but none is intact.
    """
    found: ResumeCandidates = world.broadcast(list_candidates(parent) if world.is_main else None)
    problems = [found.pointer.problem] if found.pointer.problem else []
    passed_over = 0
    while found.checkpoints:
        candidate = found.checkpoints.pop(0)
        if not own and not all(world.gather(lease(candidate / MANIFEST) or candidate.is_dir())):
            # It was removed just now because a later one was saved: list the checkpoints again.
            found = world.broadcast(list_candidates(parent) if world.is_main else None)
            problems = [found.pointer.problem] if found.pointer.problem else []
            continue
        problem = find_checkpoint_damage(candidate, world, weights_only=weights_only)
        if problem is None:
            for line in problems:
                logger.warning("DAMAGED CHECKPOINT skipped: %s", line)
            if problems:
                logger.warning("%s is used instead", candidate.name)
            named = found.pointer.checkpoint
            if named is not None and is_later(candidate, named):
                logger.warning(
                    "%s is used, although it is of a later step than %s, which %s names as the latest checkpoint",
                    candidate.name,
                    named.name,
                    POINTER,
                )
            return candidate
        problems.append(f"{candidate.name}: {problem}")
        passed_over += 1
    if passed_over:
        advice = "" if weights_only else " To start the run from the beginning, move this folder away."
        raise UserError(f"[E118] no checkpoint in {parent} is complete: {'; '.join(problems)}.{advice}")
    if problems:
        raise UserError(
            f"{parent / POINTER} names a checkpoint, but no checkpoint exists; to start the run from the beginning, "
            "move this folder away"
        )
    return None


def is_later(path: Path, named: Path) -> bool:
    """Returns whether the checkpoint folder `path` is of a later step than the checkpoint folder `named`."""
    return folder_iteration(path) > folder_iteration(named)


def gone_back(taken: Path, keep_latest_k: int | None) -> str | None:
    """Returns a warning if the next save after a resume from `taken` removes later checkpoints; else None.

    Args:
        taken: Folder of the checkpoint from which the run resumes.
        keep_latest_k: Number of newest checkpoints that a save keeps; None: all, so that the result is None.
    """
    later = [path.name for path in checkpoint_folders(taken.parent) if is_later(path, taken)]
    if keep_latest_k is None or not later:
        return None
    return (
        f"the run resumes from {taken.name}, and its next save removes the later checkpoints: "
        f"{', '.join(reversed(later))} (checkpoint.keep_latest_k = {keep_latest_k}); "
        "move those that you want to keep to another folder"
    )
