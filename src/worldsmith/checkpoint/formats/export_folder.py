"""Common parts of all export formats: the description in `worldsmith.json`, and atomic writing of the folder."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith import __version__
from worldsmith.checkpoint.dcp.dcp_folder import METADATA
from worldsmith.checkpoint.formats.family_formats import formats_of
from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT
from worldsmith.data.robots.robot import POLICY_FILE
from worldsmith.files import atomic
from worldsmith.files.checksum_manifest import (
    find_change,
    find_damage,
    list_files,
    summarize_file,
    summarize_files,
    write_manifest,
)
from worldsmith.files.fingerprint import LINEAGE
from worldsmith.files.json_file import read_json_object, read_optional_json, section
from worldsmith.files.lines import read_lines
from worldsmith.files.write_checks import require_only, require_writable

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.checkpoint.formats.stored_model import StoredModel

WEIGHT_FILES = (".safetensors", ".distcp", ".pt", METADATA)
"""Suffixes or names of the files whose checksums are verified when an export is opened; users may edit the others."""
IGNORED_KEYS = ("files", "checksums", "versions", "worldsmith", "base_model", "card")
"""Keys of `worldsmith.json` that are ignored when two exports are compared."""


@dataclass(frozen=True, slots=True)
class ExportSource:
    """Origin of exported weights, as recorded in `worldsmith.json`: training run, step, and type of weights.

    `weights` is "ema" (EMA weights), "live" (raw, non-EMA weights) or "untrained" (initial weights of the run).
    """

    run: str = ""
    """project/group/name of the run."""
    iteration: int = 0
    """Number of optimizer steps of the weights."""
    weights: Literal["ema", "live", "untrained"] = "live"
    merged: bool = False
    """Whether the LoRA adapters of the run are merged into the weights."""
    robots: Mapping[str, Any] = field(default_factory=dict)
    """What a robot policy needs besides the model, see `robots_of`."""

    def as_data(self) -> dict[str, Any]:
        """Returns the fields as plain data; `robots` is missing if it is empty."""
        return {name: value for name, value in asdict(self).items() if name != "robots" or value}


def require_place(out: Path, index: str) -> None:
    """Raises an error if an export cannot be written to `out`. Call it before weights are read.

    Args:
        out: Target folder.
        index: Name of a file that every export of the target format has, such as config.json.

    Raises:
        UserError: If the folder cannot be written.
        FileExistsError: If `out` contains anything that an export must not replace.
    """
    require_writable(out.absolute().parent)
    read_about(out, index)


def may_write(out: Path, about: Mapping[str, Any], force: bool, *, index: str) -> bool:
    """Returns whether an export must be written to `out`: False if the same complete export is already there.

    Args:
        out: Target folder.
        about: Content of `worldsmith.json` for the new export.
        force: Whether a different or damaged export in `out` may be replaced.
        index: Name of a file that every export of the target format has, such as config.json.

    Raises:
        FileExistsError: If `out` contains a different or damaged export and `force` is False, or if it contains files
            that do not belong to an export.
    """
    present = read_about(out, index)
    if present is None:
        return True
    damage = find_export_damage(out, present)
    if damage is None and same_export(present, about):
        return False
    if force:
        require_only(out, {ABOUT, LINEAGE, *present["files"]})
        return True
    state = "another export" if damage is None else f"an export with missing or changed files ({damage})"
    raise FileExistsError(f"{out} is {state}: replace it with --force, or choose another folder")


def require_free(out: Path, index: str, *, force: bool) -> None:
    """Raises FileExistsError unless a new export may be written to `out`.

    Args:
        out: Target folder; missing and empty folders are accepted.
        index: Name of a file that every export of the target format has, such as config.json.
        force: Whether an export in `out` may be replaced. Files that do not belong to an export are never replaced.
    """
    present = read_about(out, index)
    if present is not None and not force:
        raise FileExistsError(f"{out} already exists: replace it with --force, or choose another folder")
    if present is not None:
        require_only(out, {ABOUT, LINEAGE, *present["files"]})


def read_about(out: Path, index: str) -> dict[str, Any] | None:
    """Returns the content of `worldsmith.json` in the export `out`; None if `out` does not exist or is empty.

    Args:
        out: Target folder.
        index: Name of a file that every export of the target format has, such as config.json.

    Raises:
        FileExistsError: If `out` contains anything other than an export, since an export may not replace it.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / ABOUT).is_file() or not (out / index).exists():
        raise FileExistsError(f"{out} already exists and is not an export: remove it yourself or choose another folder")
    return read_json_object(out / ABOUT)


def read_source(folder: Path) -> ExportSource:
    """Returns the origin of the weights in the export `folder`; `ExportSource()` if its `worldsmith.json` has none."""
    return ExportSource(**(read_optional_json(folder / ABOUT).get("source") or {}))


def origin_of(model: StoredModel, *, merge: bool) -> ExportSource:
    """Returns the origin to record in an export: run, step and weights of `model`, and whether adapters are merged.

    Args:
        model: Model to export.
        merge: Whether the LoRA adapters of its run, if any, are merged into the weights.
    """
    merged = (model.has_adapters and merge) or model.adapter is not None or read_source(model.folder).merged
    return ExportSource(model.run, model.iteration, model.weights, merged, robots_of(model))


def robots_of(model: StoredModel) -> dict[str, Any]:
    """Returns what a policy needs besides the model: name of the dataset -> content of its `POLICY_FILE`.

    The name is "" if the run has only one dataset. The dict is empty if the model was not trained on robot episodes.
    """
    if model.adapter is not None or model.tree is None:
        return dict(read_source(model.adapter or model.folder).robots)
    run = run_folder(model)
    members = (model.tree["dataloader_train"].get("dataset") or {}).get("datasets") or {}
    files = {"": run / POLICY_FILE, **{name: run / f"{name}_{POLICY_FILE}" for name in members}}
    return {name: read_json_object(file) for name, file in files.items() if file.is_file()}


def run_folder(model: StoredModel) -> Path:
    """Returns the run folder of a model that comes from a run."""
    return model.folder if model.weights == "untrained" else model.folder.resolve().parent.parent


def facts_of(model: StoredModel) -> dict[str, Any]:
    """Returns facts about the training data of a model for its model card; empty if they are not recorded.

    The keys are "data" (name of the dataset), "clips" (number of clips) and "windows" (number of windows: training
    samples cut from the clips).
    """
    if model.tree is None:
        card = section(read_optional_json(model.folder / ABOUT), "card")
        return {name: card[name] for name in ("data", "clips", "windows") if name in card}
    listed = run_folder(model) / "dataset_windows.txt"
    windows = [line.split(" ", 1)[-1] for line in read_lines(listed)] if listed.is_file() else []
    path = (model.tree["dataloader_train"].get("dataset") or {}).get("path")
    if not windows or not path:
        return {}
    clips = {key.rpartition("_w")[0] for key in windows}
    return {"data": Path(path).name, "clips": len(clips), "windows": len(windows)}


def count_elements(shapes: Mapping[str, Sequence[int]]) -> int:
    """Returns the total number of elements of all tensors in `shapes` (tensor name -> shape)."""
    return sum(math.prod(shape) for shape in shapes.values())


def add_to_card(folder: Path, measured: Mapping[str, float], frames: Path) -> bool:
    """Adds metrics and an image of generated frames to the model card of an export.

    Args:
        folder: Exported folder.
        measured: Name of a metric -> its value.
        frames: Image file with the frames, which is copied into the folder.

    Returns:
        Whether the card was changed: False if the folder is not an export, or the user has edited its card.
    """
    file, card = folder / ABOUT, folder / "README.md"
    about = read_optional_json(file)
    if "files" not in about or "source" not in about or not card.is_file():
        return False
    formats = formats_of(section(about, "model").get("name", ""))
    if card.read_text(encoding="utf-8") != formats.card(folder.name, about):
        return False
    about["card"] = {**about.get("card", {}), "measured": dict(measured), "frames": frames.name}
    with atomic.replacing(folder / frames.name) as aside:
        shutil.copyfile(frames, aside)
    atomic.write_text(card, formats.card(folder.name, about))
    about["files"] |= {name: (folder / name).stat().st_size for name in (card.name, frames.name)}
    if "checksums" in about:  # an export of an earlier version has none
        about["checksums"] |= {name: summarize_file(folder / name)[1] for name in (card.name, frames.name)}
    atomic.write_text(file, json.dumps(about, indent=2) + "\n")
    return True


def find_export_damage(out: Path, about: Mapping[str, Any]) -> str | None:
    """Returns a description of the first missing or changed file of an export; None if all files are unchanged.

    Args:
        out: Folder of the export; its manifest has the checksums of the weight files.
        about: Content of its `worldsmith.json`, with the checksums of the other files; exports of earlier versions have
            only their sizes.
    """
    for name, size in about["files"].items():
        if not (out / name).is_file():
            return f"{name} is missing"
        if (found := (out / name).stat().st_size) != size:
            return f"{name} has {found} bytes, expected {size}"
    expected = {name: [about["files"][name], crc] for name, crc in about.get("checksums", {}).items()}
    changes = (find_change(out, name, entry) for name, entry in expected.items())
    return next((change for change in changes if change is not None), None) or find_damage(out)


def same_export(present: Mapping[str, Any], about: Mapping[str, Any]) -> bool:
    """Returns whether two exports are the same, apart from the keys in `IGNORED_KEYS` (files, versions, model card).

    Args:
        present: Content of `worldsmith.json` of an export on disk.
        about: Content of `worldsmith.json` of the export to compare with it.
    """
    return {k: v for k, v in present.items() if k not in IGNORED_KEYS} == {
        k: v for k, v in about.items() if k not in IGNORED_KEYS
    }


def state_versions(format: str, *packages: str) -> dict[str, Any]:
    """Returns the first entries of `worldsmith.json` as a dict.

    The keys are `worldsmith` (its version), `versions` (package name -> version, for `packages`) and `format` (name
    of the export format).
    """
    return {"worldsmith": __version__, "versions": {name: version(name) for name in packages}, "format": format}


@contextmanager
def new_export(
    out: Path, about: dict[str, Any], card: Callable[[str, Mapping[str, Any]], str], *, force: bool
) -> Iterator[Path]:
    """Context manager: yields a temporary folder for the files of an export, and publishes it as `out` at the end.

    Args:
        out: Target folder.
        about: Content of `worldsmith.json` for the export; sizes and checksums of the files are added in place.
        card: Called as `card(folder name, about)`; returns the content of README.md.
        force: Whether an existing folder `out` may be replaced.

    Yields:
        The folder to write the files to; the README, `worldsmith.json` and the manifest are added afterwards.

    Raises:
        FileExistsError: If `out` contains files and `force` is False.
    """
    with atomic.locked_temporary_folder(out) as aside:
        yield aside
        (aside / "README.md").write_text(card(out.name, about), encoding="utf-8")
        publish_export(aside, out, about, force=force)


def publish_export(aside: Path, out: Path, about: dict[str, Any], *, force: bool) -> None:
    """Writes the manifest and `worldsmith.json` of an export, then renames the folder `aside` to `out` atomically.

    All files get the default permissions, because safetensors makes weight files readable by their owner only.

    Args:
        aside: Temporary folder with the files.
        out: Target folder.
        about: Content of `worldsmith.json`; sizes and checksums of the files are added in place.
        force: Whether an existing folder `out` may be replaced.

    Raises:
        FileExistsError: If `out` contains files and `force` is False.
    """
    weights = [file for file in list_files(aside) if file.suffix in WEIGHT_FILES or file.name in WEIGHT_FILES]
    write_manifest(aside, summarize_files(aside, weights))
    about["files"] = {str(p.relative_to(aside)): p.stat().st_size for p in sorted(aside.rglob("*")) if p.is_file()}
    others = [aside / name for name in about["files"] if aside / name not in weights]
    about["checksums"] = {name: crc for name, (_, crc) in summarize_files(aside, others).items()}
    (aside / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    ordinary = (aside / ABOUT).stat().st_mode
    for name in about["files"]:
        (aside / name).chmod(ordinary)
    atomic.publish_folder(aside, out, replace=force)


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Returns the hex SHA-256 over names, dtypes, shapes and bytes of all tensors."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        add_tensor(digest, name, weights[name])
    return digest.hexdigest()


def add_tensor(digest: Any, name: str, tensor: Tensor) -> None:
    """Updates the hashlib object `digest` with name, dtype, shape and bytes of a tensor.

    The caller adds the tensors sorted by name, because the digest depends on the order of the calls.
    """
    import torch

    tensor = tensor.contiguous()
    digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
    digest.update(tensor.view(-1).view(torch.uint8).numpy().data)


def parameters(about: Mapping[str, Any]) -> str:
    """Returns a phrase for the model card such as " of 2.0 million parameters"; "" if `about` lacks the number.

    Args:
        about: Content of the export's `worldsmith.json`.
    """
    count = about.get("card", {}).get("parameters")
    return f" of {count / 1e6:.1f} million parameters" if count else ""


def origin(about: Mapping[str, Any], what: str) -> str:
    """Returns a phrase for the model card with run, step and dtype of exported weights.

    An example is "the ema weights of the run `p/g/n` after 100 steps, in bfloat16, exported by Worldsmith 1.0".

    Args:
        about: Content of the export's `worldsmith.json`.
        what: Noun after "the ema", "the live" or "the untrained": "weights", or "ones" in a sentence that already
            contains "weights".
    """
    source = about["source"]
    run = f" of the run `{source['run']}`" if source["run"] else ""
    return (
        f"the {source['weights']} {what}{run} after {source['iteration']} steps, in {about['dtype']}, exported by "
        f"Worldsmith {about['worldsmith']}"
    )
