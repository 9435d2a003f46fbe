"""One checkpoint on its way to the disk: every rank writes its share, and rank 0 makes it visible."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.dcp import parts as dcp
from worldsmith.checkpoint.run.folders import BEST_POINTER, POINTER, hidden, remove_old
from worldsmith.distributed.peers import Peers
from worldsmith.files import atomic, manifest

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlanner


@dataclass(frozen=True)
class Save:
    """What one rank has to write beside its tensors."""

    target: Path
    """The checkpoint's folder."""
    texts: Mapping[str, str]
    """Small files to keep beside the tensors."""
    position: str | None
    """Where the data goes on, as JSON."""
    data_rank: int
    """The share of the data that `position` belongs to."""
    keep_latest_k: int | None
    keep_every: int | None
    is_best: bool = False


def write_checkpoint(save: Save, planners: Mapping[str, SavePlanner], peers: Peers, *, staged: bool) -> None:
    """Writes the tensors of `planners` (set up, one for each part) and everything else of a checkpoint.

    It can run in any thread or process that has its peers.
    """
    aside, made = hidden(save.target), list[os.stat_result]()
    peers.run_on_main(lambda: made.append(write_texts(aside, save.texts)))
    for part, planner in planners.items():
        peers.run_on_main(lambda: require_folder(aside, made[0], save.texts))
        dcp.save_part(aside / part, planner, peers, staged=staged)
    positions = peers.run(lambda: (save.data_rank, save.position))
    peers.run_on_main(lambda: require_folder(aside, made[0], save.texts))
    peers.run_on_main(lambda: write_positions(aside / "dataloader", positions))
    share = peers.scatter(lambda: deal(aside, peers.size))
    shares = peers.run(lambda: manifest.summarize(aside, [aside / name for name in share]))
    peers.run_on_main(lambda: make_visible(save, shares))


def deal(aside: Path, shares: int) -> list[list[str]]:
    """The files of a checkpoint for so many processes to read: their paths below its folder."""
    names = [str(path.relative_to(aside)) for path in manifest.list_files(aside)]
    return [names[number::shares] for number in range(shares)]


def make_visible(save: Save, shares: list[dict[str, list[int]]]) -> None:
    """Gives a complete checkpoint its manifest, its name and the pointer, and removes older ones."""
    aside, target = hidden(save.target), save.target
    manifest.write_manifest(aside, {name: entry for share in shares for name, entry in share.items()})
    atomic.publish_folder(aside, target)
    atomic.write_text(target.parent / POINTER, f"{target.name}\n")
    if save.is_best:
        atomic.write_text(target.parent / BEST_POINTER, f"{target.name}\n")
    remove_old(target, save.keep_latest_k, save.keep_every)


def require_folder(aside: Path, made: os.stat_result, texts: Iterable[str]) -> None:
    """Raises FileNotFoundError when the run folder was moved meanwhile, and `aside` is no more what was `made`.

    What torch has made anew at the old place just then, which lacks the `texts`, is removed.
    """
    if os.path.samestat(aside.stat(), made):
        return
    if not any((aside / name).exists() for name in texts):
        shutil.rmtree(aside)
        for place in list(aside.parents)[:2]:
            with suppress(OSError):  # others have put something there
                place.rmdir()
    raise FileNotFoundError(errno.ENOENT, "it was moved while it was written", str(aside))


def write_texts(aside: Path, texts: Mapping[str, str]) -> os.stat_result:
    """Makes the folder; returns what it is known by."""
    aside.mkdir()  # not with the folders above it: the run has made them, and may have lost them
    for name, text in texts.items():
        (aside / name).write_text(text, encoding="utf-8")
    return aside.stat()


def write_positions(folder: Path, positions: list[tuple[int, str | None]]) -> None:
    """One file for each data-parallel group; its members all have the same position."""
    folder.mkdir()
    for rank, position in positions:
        if position is not None:
            (folder / f"rank_{rank}.json").write_text(position, encoding="utf-8")
