"""One checkpoint on its way to the disk: every rank writes its share, and rank 0 makes it visible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint import atomic, dcp, manifest
from worldsmith.distributed.peers import Peers

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlanner

POINTER = "latest_checkpoint.txt"


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


def write_checkpoint(save: Save, planners: Mapping[str, SavePlanner], peers: Peers, *, staged: bool) -> None:
    """Writes the tensors of `planners` (set up, one for each part) and everything else of a checkpoint.

    It can run in any thread or process that has its peers.
    """
    aside = hidden(save.target)
    peers.run_on_main(lambda: write_texts(aside, save.texts))
    for part, planner in planners.items():
        dcp.save_part(aside / part, planner, peers, staged=staged)
    positions = peers.run(lambda: (save.data_rank, save.position))
    peers.run_on_main(lambda: write_positions(aside / "dataloader", positions))
    shares = peers.run(lambda: manifest.summarize(aside, manifest.list_files(aside)[peers.rank :: peers.size]))
    peers.run_on_main(lambda: publish(save, shares))


def publish(save: Save, shares: list[dict[str, list[int]]]) -> None:
    """Gives a complete checkpoint its manifest, its name and the pointer, and removes older ones."""
    aside, target = hidden(save.target), save.target
    manifest.write_manifest(aside, {name: entry for share in shares for name, entry in share.items()})
    atomic.publish_folder(aside, target)
    atomic.write_text(target.parent / POINTER, f"{target.name}\n")
    remove_old(save)


def remove_old(save: Save) -> None:
    """Removes the checkpoints that `keep_latest_k` and `keep_every` do not keep; never the newest one."""
    if save.keep_latest_k is None:
        return
    newest = save.target
    found = [path for path in newest.parent.glob("iter_*") if path.is_dir()]
    # Later steps than the newest one's belong to a past that the run has gone back from: they go first.
    before = sorted((path for path in found if path < newest), reverse=True)[: save.keep_latest_k - 1]
    for path in found:
        milestone = save.keep_every is not None and folder_iteration(path) % save.keep_every == 0
        if path != newest and path not in before and not (milestone and path < newest):
            atomic.remove_folder(path)


def hidden(target: Path) -> Path:
    """The folder in which a checkpoint is written."""
    return target.with_name(f"{atomic.SAVING}{target.name}")


def folder_name(iteration: int) -> str:
    return f"iter_{iteration:09d}"


def folder_iteration(folder: Path) -> int:
    return int(folder.name.removeprefix("iter_"))


def write_texts(aside: Path, texts: Mapping[str, str]) -> None:
    aside.mkdir(parents=True)
    for name, text in texts.items():
        (aside / name).write_text(text, encoding="utf-8")


def write_positions(folder: Path, positions: list[tuple[int, str | None]]) -> None:
    """One file for each data-parallel group; its members all have the same position."""
    folder.mkdir()
    for rank, position in positions:
        if position is not None:
            (folder / f"rank_{rank}.json").write_text(position, encoding="utf-8")
