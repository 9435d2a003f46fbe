"""Starting a new run from the weights of another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.checkpointer import POINTER, load_part, stored_shapes
from worldsmith.config.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class LoadReport:
    """What a warm start did with each tensor name."""

    source: Path
    loaded: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The report for people, one line per kind."""
        text = [f"weights from {self.source}: {len(self.loaded)} tensors loaded"]
        if self.skipped:
            text.append(f"  skipped by keys_to_skip_loading: {shorten(self.skipped)}")
        if self.unexpected:
            text.append(f"  in the checkpoint but not in this network: {shorten(self.unexpected)}")
        return text


def load_weights(
    path: str, model: dict[str, Tensor], *, keys_to_skip: Sequence[str] = (), no_dist: bool = True
) -> LoadReport:
    """Reads the checkpoint at `path` into `model` (`net.*` and `net_ema.*` tensors), in place.

    An average that was skipped starts from the live weights. Raises FileNotFoundError when there is no checkpoint,
    UserError when a tensor that is not skipped is missing or has another shape.
    """
    report = plan_loading(path, {name: list(tensor.shape) for name, tensor in model.items()}, keys_to_skip)
    load_part(report.source, {name: model[name] for name in report.loaded}, no_dist=no_dist)
    for name in report.skipped:
        live = "net." + name.removeprefix("net_ema.")
        if name.startswith("net_ema.") and live in model:
            model[name].copy_(model[live])
    return report


def plan_loading(path: str, wanted: dict[str, list[int]], keys_to_skip: Sequence[str]) -> LoadReport:
    """Compares names and shapes without reading a tensor; raises like `load_weights`."""
    report = LoadReport(source=find_model_folder(path))
    stored = stored_shapes(report.source)
    for name, shape in wanted.items():
        if any(key in name for key in keys_to_skip):
            report.skipped.append(name)
        elif name not in stored:
            report.missing.append(name)
        elif stored[name] != shape:
            report.mismatched.append(f"{name} (here {shape}, stored {stored[name]})")
        else:
            report.loaded.append(name)
    report.unexpected = [name for name in stored if name not in wanted]
    if report.missing or report.mismatched:
        raise UserError(_complaint(report))
    return report


def find_model_folder(path: str) -> Path:
    """The model folder of a run folder, of a checkpoint's iter folder, or `path` itself when it is one."""
    root = Path(path)
    if root.is_file():
        raise UserError(
            f"checkpoint.load_path {path} is a file; expected a folder that Worldsmith or a converter has written"
        )
    candidates = [root, root / "model"]
    for checkpoints in (root, root / "checkpoints"):
        if (checkpoints / POINTER).exists():
            candidates.append(checkpoints / (checkpoints / POINTER).read_text(encoding="utf-8").strip() / "model")
    for folder in candidates:
        if (folder / ".metadata").exists():
            return folder
    raise FileNotFoundError(
        f"checkpoint.load_path {path}: {'no such folder' if not root.exists() else 'no checkpoint in this folder'}; "
        "expected a run folder, a checkpoints/iter_… folder or its model folder"
    )


def shorten(names: Sequence[str], limit: int = 3) -> str:
    shown = ", ".join(names[:limit])
    return f"{len(names)} ({shown}{', …' if len(names) > limit else ''})"


def _complaint(report: LoadReport) -> str:
    parts = [f"the weights in {report.source} do not fit this network."]
    if report.missing:
        parts.append(f"Not in the checkpoint: {shorten(report.missing)}.")
    if report.mismatched:
        parts.append(f"Other shapes: {shorten(report.mismatched)}.")
    if report.missing and all(name.startswith("net_ema.") for name in report.missing):
        parts.append(
            'Add "net_ema." to checkpoint.keys_to_skip_loading: the average then starts from the loaded weights.'
        )
    else:
        parts.append(
            "Correct the model's config, or name what may stay as initialised in checkpoint.keys_to_skip_loading."
        )
    return " ".join(parts)
