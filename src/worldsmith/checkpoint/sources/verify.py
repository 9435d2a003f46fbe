"""Verifies stored files with their checksums before they are read; the ranks divide the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.dcp.dcp_folder import METADATA
from worldsmith.config.errors import UserError
from worldsmith.files.checksum_manifest import MANIFEST, find_damage
from worldsmith.files.lines import require_regular

if TYPE_CHECKING:
    from worldsmith.distributed.world import World

WEIGHTS = ("model/", "config.yaml", "frozen_weights.json")
"""Prefixes of the paths of those files in a checkpoint that are required to read its weights; users may remove the
others to free disk space."""


def has_checksums(folder: Path) -> bool:
    """Returns whether a folder has a manifest with checksums, which may be damaged.

    False if another program has written a file of that name.
    """
    try:
        require_regular(folder / MANIFEST)
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return isinstance(manifest, dict) and "files" in manifest


def find_checkpoint_damage(folder: Path, world: World, *, weights_only: bool = False) -> str | None:
    """Verifies the checksums of a checkpoint; returns a description of the first damage, or None if it is intact.

    Collective: each rank reads a part of the files, and all ranks get the same result.

    Args:
        folder: Checkpoint folder.
        world: Ranks that divide the work.
        weights_only: Whether only the files of the weights are verified and checksums may be missing.
    """
    if weights_only and not has_checksums(folder):
        problem = None if (folder / "model" / METADATA).is_file() else f"it has no model/{METADATA}"
    else:
        only = WEIGHTS if weights_only else ("",)
        problem = find_damage(folder, only=only, rank=world.rank, ranks=world.size)
    return next((found for found in world.gather(problem) if found is not None), None)


def require_intact(folder: Path, world: World, *, only: tuple[str, ...] = ("",)) -> None:
    """Raises UserError if a folder with checksums is damaged; a folder without checksums is accepted. Collective.

    Args:
        folder: Folder of weights.
        world: Ranks that divide the work.
        only: Prefixes of the relative paths to verify; by default all files are verified.
    """
    checked = has_checksums(folder)
    own = find_damage(folder, only=only, rank=world.rank, ranks=world.size) if checked else None
    found = world.gather((checked, own))
    problem = next((problem for _, problem in found if problem is not None), None)
    if problem is None and len({checked for checked, _ in found}) > 1:
        lacking = [rank for rank, (checked, _) in enumerate(found) if not checked]
        problem = f"processes {lacking} find no {MANIFEST} in the folder, but the others do"
    if problem is not None:
        raise UserError(f"[E118] {folder} is damaged: {problem}. Copy it again, or use another checkpoint")
