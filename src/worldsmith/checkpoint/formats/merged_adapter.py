"""A model with adapters of a folder merged into its weights, as a folder that is named by what it is made of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.formats.export_folder import is_whole, read_source
from worldsmith.checkpoint.formats.family_formats import DType, ExportOptions
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT
from worldsmith.checkpoint.sources.merged_weights import MergedWeights
from worldsmith.config.errors import UserError
from worldsmith.files.atomic import write_text
from worldsmith.files.fingerprint import fingerprint
from worldsmith.files.json_file import read_json_object

if TYPE_CHECKING:
    from worldsmith.checkpoint.sources.weight_source import WeightSource

NAMED_BY = 16
"""Hex digits of the fingerprint that make a folder's name."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged folder, and what merging has done."""

    folder: str
    fingerprint: str
    """Of the base, the adapter and the number format."""
    layers: int
    """Adapted ones; each matrix of the adapter belongs to one of them."""
    changed: int
    """Of their weights so many differ from the base's."""
    max_change: float
    """The largest difference of a number, in the number format of the folder."""
    dtype: DType


def use_adapter(model: StoredModel, adapter: str | None) -> StoredModel:
    """The model with the adapter of `--adapter`, if there is one.

    Raises UserError for a model that has adapters already.
    """
    if adapter is None:
        return model
    if model.adapter is not None:
        raise UserError(f"--adapter {adapter}: the model {model.adapter} holds adapters too; leave one of them out")
    require_no_adapters(model, Path(adapter))
    return replace(model, adapter=Path(adapter))


def require_no_adapters(model: StoredModel, adapter: Path) -> None:
    """Raises UserError when `adapter` would be added to weights that hold it, or their run's own adapters, already."""
    source = read_source(model.folder)
    trained = model.has_adapters and model.weights != "untrained"
    if trained or (source.merged and source.run == read_source(adapter).run):
        raise UserError(
            f"--adapter {adapter}: {model.folder} has its run's adapters in its weights already; leave --adapter out, "
            "or give the base that the run started from"
        )


def merge_adapter(model: StoredModel, place: Path) -> Merged:
    """Writes `model`, which has an adapter, into a folder of `place`, one tensor at a time; the folder appears when it
    is complete. One that is there is used when it is of the same base and adapter, and whole.

    Raises UserError for an adapter that is not the model's, or whose changes are lost in the rounding of the weights.
    """
    assert model.adapter is not None
    source = model.open()
    assert isinstance(source, MergedWeights)
    dtype = stored_dtype(source)
    made_of = [fingerprint(model.folder), model.weights, fingerprint(model.adapter), dtype]
    mark = hashlib.sha256("\n".join(made_of).encode()).hexdigest()
    folder, facts = place / mark[:NAMED_BY], place / f"{mark[:NAMED_BY]}.json"
    if (known := read_merged(folder, facts)) is not None and known.fingerprint == mark:
        return known
    changed, largest = changes(source, dtype, average=model.average)
    if not changed:
        raise UserError(
            f"{model.adapter} changes no weight of {model.folder}: its matrices are zero, or smaller than the rounding "
            f"of {dtype}"
        )
    place.mkdir(parents=True, exist_ok=True)
    form = next(iter(model.formats.exports().values()))
    form.write(model, folder, ExportOptions(dtype=dtype, force=folder.exists()))
    merged = Merged(str(folder), mark, len(source.adapted), changed, largest, dtype)
    write_text(facts, json.dumps(asdict(merged), indent=2) + "\n")
    return merged


def read_merged(folder: Path, facts: Path) -> Merged | None:
    """What a merged folder is, when it is whole."""
    if not facts.is_file() or not (folder / ABOUT).is_file():
        return None
    if not is_whole(folder, read_json_object(folder / ABOUT)):
        return None
    try:
        return Merged(**{**read_json_object(facts), "folder": str(folder)})
    except TypeError:
        return None


def stored_dtype(source: WeightSource) -> DType:
    """That of an export which loses nothing that the base holds."""
    import torch

    found = {source.dtype(name) for name in source.shapes}
    return "bfloat16" if found == {torch.bfloat16} else "float32"


def changes(source: MergedWeights, dtype: DType, *, average: bool) -> tuple[int, float]:
    """How many weights differ from the base's when they are stored in `dtype`, and by how much at most."""
    import torch

    stored, changed, largest = getattr(torch, dtype), 0, 0.0
    for name in sorted(source.adapted):
        before = source.source.read(name, average=average).to(stored)
        after = torch.empty(before.shape, dtype=stored)
        source.read_into({name: after}, average=average)
        difference = float((after.float() - before.float()).abs().max())
        changed, largest = changed + (difference > 0), max(largest, difference)
    return changed, largest
