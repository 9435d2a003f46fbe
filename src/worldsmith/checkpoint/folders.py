"""The folders in which a run keeps its checkpoints: their names, which of them stay, and what a broken save leaves."""

from __future__ import annotations

import logging
from pathlib import Path

from worldsmith.checkpoint import atomic
from worldsmith.checkpoint.manifest import find_damage

logger = logging.getLogger(__name__)

POINTER = "latest_checkpoint.txt"


def folder_name(iteration: int) -> str:
    return f"iter_{iteration:09d}"


def folder_iteration(folder: Path) -> int:
    return int(folder.name.removeprefix("iter_"))


def hidden(target: Path) -> Path:
    """The folder in which a checkpoint is written."""
    return target.with_name(f"{atomic.SAVING}{target.name}")


def remove_old(newest: Path, keep_latest_k: int | None, keep_every: int | None) -> None:
    """Removes the checkpoints beside `newest` that neither setting keeps; None keeps all."""
    if keep_latest_k is None:
        return
    found = [path for path in newest.parent.glob("iter_*") if path.is_dir()]
    # Later steps than the newest one's belong to a past that the run has gone back from: they go first.
    before = sorted((path for path in found if path < newest), reverse=True)[: keep_latest_k - 1]
    for path in found:
        milestone = keep_every is not None and folder_iteration(path) % keep_every == 0
        if path != newest and path not in before and not (milestone and path < newest):
            atomic.remove_folder(path)


def tidy_up(folder: Path) -> None:
    """Removes what an interrupted save left; one that was complete and only had no name yet gets it."""
    for aside in folder.glob(f"{atomic.SAVING}iter_*"):
        target = folder / aside.name.removeprefix(atomic.SAVING)
        if not target.exists() and find_damage(aside) is None:
            atomic.publish_folder(aside, target)
            logger.info("%s was complete when its save was interrupted, and is kept", target.name)
    leftovers = atomic.remove_leftovers(folder)
    if leftovers:
        logger.info("removed what an interrupted save left in %s: %s", folder, ", ".join(leftovers))
