"""Merges an adapter into the weights of a model; the result is a folder whose name is a fingerprint of its inputs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from worldsmith.checkpoint.formats.export_folder import find_export_damage, read_source
from worldsmith.checkpoint.formats.export_weights import exports_of
from worldsmith.checkpoint.formats.family_formats import DType, ExportOptions
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT
from worldsmith.checkpoint.sources.weight_source import MergedWeights, WeightSource
from worldsmith.config.errors import UserError
from worldsmith.files.atomic import write_text
from worldsmith.files.fingerprint import LINEAGE, fingerprint
from worldsmith.files.json_file import read_json_object, read_optional_json
from worldsmith.files.untrusted_folder import base_of_adapter
from worldsmith.models.model_files import is_local

logger = logging.getLogger(__name__)

NAME_DIGITS = 16
"""Number of hex digits of the fingerprint that are the name of a folder with merged weights."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A folder with the weights of a model and a merged LoRA adapter, and statistics of the merge."""

    folder: str
    fingerprint: str
    """SHA-256 over the fingerprints of base weights and adapter and the dtype."""
    layers: int
    """Number of weights that the adapter adapts."""
    changed: int
    """Number of weights that differ from the base weights."""
    max_change: float
    """Max absolute change of an element, computed from the stored values."""
    dtype: DType


def use_adapter(model: StoredModel, adapter: str | None) -> StoredModel:
    """Returns `model` with the adapter folder `adapter`, the value of `--adapter`; None: the model unchanged.

    Raises:
        UserError: If the model has adapters already, or the adapter was trained on another base model.
    """
    if adapter is None:
        return model
    if model.adapter is not None:
        raise UserError(f"--adapter {adapter}: the model {model.adapter} already contains adapters; omit one of them")
    require_no_adapters(model, Path(adapter))
    check_base(model, Path(adapter))
    return replace(model, adapter=Path(adapter))


def require_no_adapters(model: StoredModel, adapter: Path) -> None:
    """Raises UserError if the weights of the model already contain `adapter` or the adapters of their own run."""
    source = read_source(model.folder)
    trained = model.has_adapters and model.weights != "untrained"
    if trained or (source.merged and source.run == read_source(adapter).run):
        raise UserError(
            f"--adapter {adapter}: {model.folder} already contains the adapters of its run; omit --adapter, or use "
            "the initial weights of the run as the model"
        )


def check_base(model: StoredModel, adapter: Path, *, is_given: bool = False) -> None:
    """Checks on rank 0 that an adapter was trained on the base model that it is used with.

    The fingerprint of the base model in the adapter's `lineage.json` is compared. Without it, the base model's name in
    the adapter's files is compared, and a difference is only logged as a warning.

    Args:
        model: Base model.
        adapter: Adapter folder.
        is_given: Whether the user named the base model with `--base`; a difference is then only a warning.

    Raises:
        UserError: If the fingerprint differs from those of the model and of the inputs in the model's lineage record.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    recorded = [entry for entry in inputs_of(adapter) if entry.get("role") == "base" and entry.get("fingerprint")]
    folders = base_folders(model)
    if recorded:
        wanted = {entry["fingerprint"] for entry in recorded}
        if any(fingerprint(folder) in wanted for folder in folders):
            return
        if wanted & {entry.get("fingerprint") for folder in folders for entry in inputs_of(folder)}:
            return
        message = (
            f"{adapter} was trained on {recorded[0]['path']} with the fingerprint {recorded[0]['fingerprint']}, but "
            f"{folders[0]} has another fingerprint"
        )
        if not is_given:
            raise UserError(
                f"{message}. Use the base that it was trained on; if these are the same weights in another format, "
                f"use {adapter} as the model with --base {folders[0]}"
            )
        logger.warning("%s; used nevertheless, because --base names it", message)
        return
    named = base_of_adapter(adapter)
    if named and not any(may_be_named(folder, named) for folder in folders):
        logger.warning(
            "%s names the base %s, but is applied to %s: the results are correct only if these are the same weights",
            adapter, named, folders[0],
        )  # fmt: skip


def base_folders(model: StoredModel) -> list[Path]:
    """Returns the folders whose fingerprints may be recorded as base model in the lineage of adapters for `model`."""
    if model.weights == "untrained":
        start = model.base or (model.start.path if model.start is not None else str(model.folder))
        return [Path(start) if is_local(start) else model.folder]
    folders = [model.folder]
    if model.tree is None:
        folders.append(model.weights_folder)
    return list(dict.fromkeys(folder for folder in folders if folder.exists()))


def inputs_of(folder: Path) -> list[dict[str, Any]]:
    """Returns the inputs (role, path, fingerprint) in the `lineage.json` of `folder`; empty without that file."""
    found = read_optional_json(folder / LINEAGE).get("inputs")
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def may_be_named(folder: Path, name: str) -> bool:
    """Returns whether the path of `folder` matches the base model `name` (path or Hub name); reads no file."""
    if is_local(name):
        return folder.resolve().is_relative_to(Path(name).resolve())
    repository = name.removeprefix("hf://").partition("@")[0].rstrip("/")
    cached = f"models--{repository.replace('/', '--')}"
    return cached in folder.resolve().parts or Path(repository).name in folder.resolve().parts


def merge_adapter(model: StoredModel, place: Path) -> Merged:
    """Merges the adapter of `model` into its weights and writes the merged model to a new subfolder of `place`.

    The weights are merged tensor by tensor, and the subfolder appears only when complete. If an intact subfolder of the
    same base model and adapter exists, it is reused.

    Args:
        model: Model with an adapter.
        place: Parent folder of all merged models; created if missing.

    Raises:
        UserError: If the adapter does not fit the model, or changes no weight after rounding to the stored dtype.
    """
    assert model.adapter is not None
    source = model.open()
    assert isinstance(source, MergedWeights)
    dtype = stored_dtype(source)
    inputs = [fingerprint(model.folder), model.weights, fingerprint(model.adapter), dtype]
    merged_fingerprint = hashlib.sha256("\n".join(inputs).encode()).hexdigest()
    folder, facts = place / merged_fingerprint[:NAME_DIGITS], place / f"{merged_fingerprint[:NAME_DIGITS]}.json"
    if (known := read_merged(folder, facts)) is not None and known.fingerprint == merged_fingerprint:
        return known
    changed, largest = count_changes(source, dtype, average=model.average)
    if not changed:
        raise UserError(
            f"{model.adapter} changes no weight of {model.folder}: its matrices are zero, or smaller than the rounding "
            f"of {dtype}"
        )
    place.mkdir(parents=True, exist_ok=True)
    export_format = next(iter(exports_of(model.spec.name).values()))
    export_format.write(model, folder, ExportOptions(dtype=dtype, force=folder.exists()))
    merged = Merged(str(folder), merged_fingerprint, len(source.adapted), changed, largest, dtype)
    write_text(facts, json.dumps(asdict(merged), indent=2) + "\n")
    return merged


def read_merged(folder: Path, facts: Path) -> Merged | None:
    """Returns the result of an earlier merge: files in `folder`, statistics in the JSON file `facts`.

    None if the folder or the JSON file is missing, incomplete or changed.
    """
    if not facts.is_file() or not (folder / ABOUT).is_file():
        return None
    if find_export_damage(folder, read_json_object(folder / ABOUT)) is not None:
        return None
    try:
        return Merged(**{**read_json_object(facts), "folder": str(folder)})
    except TypeError:
        return None


def stored_dtype(source: WeightSource) -> DType:
    """Returns "bfloat16" if all weights of `source` are stored in bfloat16, else "float32"."""
    import torch

    found = {source.dtype(name) for name in source.shapes}
    return "bfloat16" if found == {torch.bfloat16} else "float32"


def count_changes(source: MergedWeights, dtype: DType, *, average: bool) -> tuple[int, float]:
    """Returns how many weight tensors the merge changes, and the max absolute change of an element.

    Weights before and after the merge are compared after rounding to `dtype`. Reads all weights with an adapter.

    Args:
        source: Base weights with their adapters.
        dtype: Dtype in which the merged weights are stored.
        average: Whether the EMA weights are used if they exist.

    Returns:
        (number of tensors, of those with an adapter, in which at least one element changes; max |after - before| over
        all elements of these tensors)
    """
    import torch

    stored, changed, largest = getattr(torch, dtype), 0, 0.0
    for name in sorted(source.adapted):
        before = source.source.read(name, average=average).to(stored)
        after = torch.empty(before.shape, dtype=stored)
        source.read_into({name: after}, average=average)
        difference = float((after.float() - before.float()).abs().max())
        changed, largest = changed + (difference > 0), max(largest, difference)
    return changed, largest
