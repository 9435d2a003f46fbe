"""What all exported folders have in common: that they say what they are, and appear complete or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.checkpoint.dcp.parts import METADATA
from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT
from worldsmith.files import atomic
from worldsmith.files.json_file import read_json_object
from worldsmith.files.manifest import list_files, summarize, write_manifest
from worldsmith.files.writable import require_writable

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.checkpoint.formats.stored_model import StoredModel

WEIGHT_FILES = (".safetensors", ".distcp", METADATA)
"""Suffixes, or names, of files that are verified when an export is opened; others may be edited."""
LOOSE = ("files", "versions", "worldsmith", "base_model")
"""Parts of what a folder says about itself that do not make another export."""


@dataclass(frozen=True, slots=True)
class ExportSource:
    """Where exported weights come from."""

    run: str = ""
    """project/group/name of the run."""
    iteration: int = 0
    """Optimizer steps behind the weights."""
    weights: Literal["ema", "live", "untrained"] = "live"
    merged: bool = False
    """Whether the run's adapters are merged into them."""


def require_place(out: Path, index: str) -> None:
    """Tries, before any weight is read, whether the folder `out` can be made; nothing is left behind.

    Raises UserError where nothing can be written, FileExistsError for what no export may replace (see `read_about`).
    """
    require_writable(out.absolute().parent)
    read_about(out, index)


def may_write(out: Path, about: Mapping[str, Any], force: bool, *, index: str) -> bool:
    """False when `out` is this very export, complete. Raises FileExistsError when it may not be replaced.

    `index` is the file that every export of this kind has.
    """
    present = read_about(out, index)
    if present is None:
        return True
    complete = is_whole(out, present)
    if complete and same_export(present, about):
        return False
    if force:
        return True
    state = "another export" if complete else "an export with missing or changed files"
    raise FileExistsError(f"{out} is {state}; use --force to replace it, or choose another folder")


def read_about(out: Path, index: str) -> dict[str, Any] | None:
    """What the export that is at `out` says about itself; None where nothing is.

    Raises FileExistsError for anything else, which no export may replace.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / ABOUT).is_file() or not (out / index).exists():
        raise FileExistsError(f"{out} exists and is not an export; remove it yourself or choose another folder")
    return read_json_object(out / ABOUT)


def read_source(folder: Path) -> ExportSource:
    """Where the weights in `folder` come from, if it is an export of ours; else nothing is known of them."""
    file = folder / ABOUT
    return ExportSource(**(read_json_object(file).get("source") or {} if file.is_file() else {}))


def origin_of(model: StoredModel, *, merge: bool) -> ExportSource:
    """Where the weights of an export come from; with `merge` its adapters, if any, are merged into them."""
    merged = (model.has_adapters and merge) or read_source(model.folder).merged
    return ExportSource(run=model.run, iteration=model.iteration, weights=model.weights, merged=merged)


def is_whole(out: Path, about: Mapping[str, Any]) -> bool:
    """Whether every file of an export is there and has its size."""
    return all((out / n).is_file() and (out / n).stat().st_size == size for n, size in about["files"].items())


def same_export(present: Mapping[str, Any], about: Mapping[str, Any]) -> bool:
    return {k: v for k, v in present.items() if k not in LOOSE} == {k: v for k, v in about.items() if k not in LOOSE}


def publish_export(aside: Path, out: Path, about: dict[str, Any]) -> None:
    """Writes checksums of the weight files and `about` with a list of all, and makes the folder visible as `out`.

    Weight files get the permissions of an ordinary file: safetensors makes them readable by their owner only.
    """
    weights = [file for file in list_files(aside) if file.suffix in WEIGHT_FILES or file.name in WEIGHT_FILES]
    write_manifest(aside, summarize(aside, weights))
    about["files"] = {str(p.relative_to(aside)): p.stat().st_size for p in sorted(aside.rglob("*")) if p.is_file()}
    (aside / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    ordinary = (aside / ABOUT).stat().st_mode
    for name in about["files"]:
        (aside / name).chmod(ordinary)
    atomic.publish_folder(aside, out)


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of all tensors."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        add_tensor(digest, name, weights[name])
    return digest.hexdigest()


def add_tensor(digest: Any, name: str, tensor: Tensor) -> None:
    """Adds one tensor to a digest over tensors in the order of their names."""
    import torch

    tensor = tensor.contiguous()
    digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
    digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
