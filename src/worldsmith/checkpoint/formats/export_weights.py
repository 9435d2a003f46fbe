"""Exports of weights in safetensors files, with a config.json and the components of the model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.export_folder import (
    ExportSource,
    add_tensor,
    count_elements,
    facts_of,
    may_write,
    origin_of,
    publish_export,
    read_about,
    same_export,
    state_versions,
)
from worldsmith.checkpoint.formats.family_formats import OWN, DType, ExportFormat, ExportOptions, formats_of
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.checkpoint.formats.weight_formats import NATIVE_PREFIX
from worldsmith.checkpoint.sources.open_weights import open_weights
from worldsmith.checkpoint.sources.vision_tower import find_tower
from worldsmith.checkpoint.sources.weight_source import JoinedWeights, WeightSource
from worldsmith.config.errors import UserError
from worldsmith.files.atomic import locked_temporary_folder
from worldsmith.models.spec import ModelSpec
from worldsmith.models.weights.check_finite import non_finite, require_finite

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CONFIG, STEM = "config.json", "model"
GIGABYTE = 10**9


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """File layout of an export format with full weights: tensor names, config.json and conversion of the tensors."""

    format: str
    """Name of the format, which is stored in `worldsmith.json`."""
    key: Callable[[str], str]
    """Internal parameter name → name in the files."""
    config: Callable[[ModelSpec, Mapping[str, Any]], dict[str, Any]]
    """Called with the model and the content of `worldsmith.json`; returns the content of config.json."""
    facts: Callable[[ModelSpec], dict[str, Any]] = lambda spec: {}
    """Returns facts about a model for its model card: entries of the section "card" of `worldsmith.json`."""
    prepare: Callable[[WeightSource, ModelSpec], WeightSource] = lambda source, spec: source
    """Returns the weights as tensors with the shapes that the files have."""
    packages: tuple[str, ...] = ("torch", "safetensors")
    """Packages whose versions are stored in `worldsmith.json`."""


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A model to export, and the information about it that is stored with the export."""

    weights: WeightSource
    spec: ModelSpec
    average: bool = False
    """Whether the EMA weights are exported if they exist."""
    defaults: Any = None
    """Default generation settings to store with the export, a dataclass of the model family; None: none are stored."""
    origin: ExportSource = field(default_factory=ExportSource)
    """The run that the weights come from."""
    card: Mapping[str, Any] = field(default_factory=dict)
    """Facts for the model card: further entries of the section "card" of `worldsmith.json`."""
    tree: Mapping[str, Any] | None = None
    """Config of the run as plain data; None if the model does not come from a run."""


def export_stored_weights(layout: WeightLayout, model: StoredModel, out: Path, options: ExportOptions) -> bool:
    """Exports a model on disk to the folder `out`, atomically and tensor by tensor.

    Args:
        layout: File layout of the export format.
        model: Model on disk.
        out: Target folder.
        options: Options of the export.

    Returns:
        Whether the export was written: False if the same export exists already.

    Raises:
        FileExistsError: If `out` contains a different export and `options.force` is False, or files that do not belong
            to an export.
        ValueError: If merging the adapters would change no weight.
    """
    if options.merge:
        model.require_effect()
    source, card = model.open(merge=options.merge), facts_of(model)
    if options.tower is not None:
        tower = tower_of(model, options.tower)
        source, card = (
            with_tower(source, tower, formats_of(model.spec.name).tower),
            {**card, "vision_tower": tower.describe},
        )
    spec = model.merged_spec if options.merge else model.spec
    exported = ExportedModel(
        layout.prepare(source, spec),
        spec,
        average=model.average,
        defaults=model.defaults,
        origin=origin_of(model, merge=options.merge),
        card=card,
        tree=model.tree,
    )
    return export_weights(layout, exported, out, dtype=options.dtype, force=options.force)


def named_tensors(layout: WeightLayout, model: StoredModel, options: ExportOptions) -> dict[str, Tensor]:
    """Reads all tensors that an export would contain into host RAM; returns name in the files -> tensor.

    `export_stored_weights` needs less memory, because it reads one file of tensors after the other.

    Args:
        layout: File layout of the export format.
        model: Model on disk.
        options: Options of the export.
    """
    import torch

    spec = model.merged_spec if options.merge else model.spec
    source = layout.prepare(model.open(merge=options.merge), spec)
    dtype_of = formats_of(spec.name).stored_dtype(options.dtype, spec.config)
    tensors = {name: torch.empty(shape, dtype=dtype_of(name)) for name, shape in source.shapes.items()}
    source.read_into(tensors, average=model.average)
    return {layout.key(name): tensor for name, tensor in tensors.items()}


def tower_of(model: StoredModel, place: str) -> WeightSource:
    """Returns the weights of the vision tower that the command-line option `--vision-tower` selects.

    Raises UserError if there are no such weights.

    Args:
        model: Model to export.
        place: Value of `--vision-tower`: path of weights with a vision tower, or "own" for the initial weights of the
            run that trained `model` (for `model` itself if it does not come from a run).
    """
    if place != OWN:
        source = open_weights(place, field="--vision-tower")
    elif model.tree is None:
        source = open_weights(model.folder, field="model", family=model.spec.name)
    elif model.start is not None:
        source = open_weights(model.base or model.start.path, field=model.start.field, family=model.spec.name)
    else:
        raise UserError(f"--vision-tower own: {model.folder} started from random weights, without a vision tower")
    tower = find_tower(source)
    if tower is None:
        raise UserError(f"--vision-tower {place}: {source.describe} has no vision tower")
    return tower


def with_tower(source: WeightSource, tower: WeightSource, prefix: str) -> WeightSource:
    """Returns a source with the weights of `source` and `tower`; the names of those in `tower` get `prefix`."""
    places = {name: (source, name) for name in source.shapes}
    places |= {prefix + name: (tower, name) for name in tower.shapes}
    return JoinedWeights(f"{source.describe} with {tower.describe}", places)


def export_weights(
    layout: WeightLayout,
    model: ExportedModel,
    out: Path,
    *,
    dtype: DType = "bfloat16",
    force: bool = False,
    max_shard_size: int = 5 * GIGABYTE,
) -> bool:
    """Writes the weights, config and components of a model as the folder `out`, atomically.

    Args:
        layout: File layout of the export format.
        model: Model to export.
        out: Target folder.
        dtype: Dtype of the stored weights, except for weights that the format always stores in float32.
        force: Whether a different export in `out` is replaced. Files that do not belong to an export never are.
        max_shard_size: Max size of a weight file in bytes.

    Returns:
        Whether the export was written: False if the same export exists already.

    Raises:
        FileExistsError: If `out` contains a different export and `force` is False, or files that do not belong to an
            export.
    """
    spec, source = model.spec, model.weights
    formats = formats_of(spec.name)
    present = read_about(out, CONFIG)
    about = {
        **state_versions(layout.format, *layout.packages),
        "source": model.origin.as_data(),
        "dtype": dtype,
        "weights_sha256": (present or {}).get("weights_sha256", ""),
        "generation": asdict(model.defaults) if model.defaults is not None else {},
        "model": formats.exported_config(spec),
        "card": {"parameters": count_elements(source.shapes), **layout.facts(spec), **model.card},
    }
    is_known = present is not None and not may_write(out, about, force, index=CONFIG)
    with locked_temporary_folder(out) as aside:
        keys = {name: layout.key(name) for name in source.shapes}
        dtype_of = formats.stored_dtype(dtype, spec.config)
        about["weights_sha256"] = write_safetensors(
            aside, STEM, source, keys, dtype_of, average=model.average, max_shard_size=max_shard_size
        )
        if is_known and same_export(present or {}, about):
            return False
        if is_known:  # other weights
            may_write(out, about, force, index=CONFIG)
        formats.pack_components(spec.config, aside, model.tree)
        (aside / CONFIG).write_text(json.dumps(layout.config(spec, about), indent=2) + "\n", encoding="utf-8")
        (aside / "README.md").write_text(formats.card(out.name, about), encoding="utf-8")
        publish_export(aside, out, about, force=force)
    return True


def native_config(spec: ModelSpec, about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of config.json in a native export: model type, dtype and the complete model config.

    Args:
        spec: The model.
        about: Content of the export's `worldsmith.json`.
    """
    return {
        "model_type": formats_of(spec.name).native_type or spec.name,
        "dtype": about["dtype"],
        "model": about["model"],
    }


LAYOUT = WeightLayout("native", NATIVE_PREFIX.__add__, native_config)


NATIVE = ExportFormat(
    "export_native",
    CONFIG,
    "weights",
    partial(export_stored_weights, LAYOUT),
    partial(named_tensors, LAYOUT),
    keeps_adapters=True,
    keeps_tower=True,
    has_schedule=True,
)


def exports_of(family: str) -> dict[str, ExportFormat]:
    """Returns the formats to which models of a family can be exported: format name -> format; never empty."""
    return formats_of(family).exports() or {"native": NATIVE}


def write_safetensors(
    folder: Path,
    stem: str,
    source: WeightSource,
    keys: Mapping[str, str],
    dtype_of: Callable[[str], torch.dtype],
    *,
    average: bool = False,
    max_shard_size: int = 5 * GIGABYTE,
) -> str:
    """Writes weights to `stem.safetensors`, or to several files `stem-00001-of-0000N.safetensors` with an index file.

    Args:
        folder: Existing folder.
        stem: Base name of the files.
        source: Weights to write.
        keys: Internal parameter name → name in the files.
        dtype_of: Returns the dtype in which a weight is stored, from its internal parameter name.
        average: Whether EMA weights are written if they exist.
        max_shard_size: Max size of a file in bytes; a larger tensor gets its own file.

    Returns:
        Hex SHA-256 over all tensors, as from `weights_digest`.

    Raises:
        UserError: If a tensor is not finite.
    """
    import torch
    from safetensors.torch import save_file

    digest = hashlib.sha256()
    shards = plan_shards(source, keys, dtype_of, max_shard_size)
    total, weight_map = 0, {}
    for index, names in enumerate(shards, start=1):
        file = f"{stem}.safetensors" if len(shards) == 1 else f"{stem}-{index:05d}-of-{len(shards):05d}.safetensors"
        shapes = {name: source.shapes[name] for name in names}
        tensors = {name: torch.empty(shape, dtype=dtype_of(name)) for name, shape in shapes.items()}
        source.read_into(tensors, average=average)
        require_finite(source.describe, non_finite(tensors))
        for name in names:
            add_tensor(digest, keys[name], tensors[name])
            total += tensors[name].nbytes
            weight_map[keys[name]] = file
        save_file({keys[name]: tensor for name, tensor in tensors.items()}, folder / file, metadata={"format": "pt"})
    if len(shards) > 1:
        content = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return digest.hexdigest()


def plan_shards(
    source: WeightSource, keys: Mapping[str, str], dtype_of: Callable[[str], torch.dtype], max_shard_size: int
) -> list[list[str]]:
    """Divides weights into files of at most `max_shard_size` bytes; returns the internal parameter names of each file.

    Args:
        source: Weights, for their shapes.
        keys: Internal parameter name → name in the files, which determines the order.
        dtype_of: Returns the stored dtype of a weight from its internal parameter name.
        max_shard_size: Max size of a file in bytes; a larger tensor gets its own file.
    """
    shards: list[list[str]] = [[]]
    size = 0
    for name in sorted(keys, key=lambda name: keys[name]):
        count = dtype_of(name).itemsize * math.prod(source.shapes[name])
        if shards[-1] and size + count > max_shard_size:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += count
    return shards
