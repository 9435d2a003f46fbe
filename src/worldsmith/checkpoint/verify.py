"""Checking stored files against their checksums before anything is read from them; all ranks share the reading."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.manifest import MANIFEST, find_damage
from worldsmith.config.errors import UserError

if TYPE_CHECKING:
    from worldsmith.distributed.world import World


def has_checksums(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def damage(folder: Path, world: World) -> str | None:
    """What is wrong with a folder, in words: the same answer on all ranks, each of which reads a share of the files."""
    found = world.gather(find_damage(folder, rank=world.rank, ranks=world.size))
    return next((problem for problem in found if problem is not None), None)


def require_whole(folder: Path, world: World) -> None:
    """Raises UserError when a folder that has checksums is damaged."""
    problem = damage(folder, world) if has_checksums(folder) else None
    if problem is not None:
        raise UserError(f"{folder} is damaged: {problem}. Copy it again, or give another checkpoint")
