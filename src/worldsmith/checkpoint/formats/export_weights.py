"""Exports that hold a model's weights in safetensors files, with a config.json and whatever belongs to the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith import __version__
from worldsmith.checkpoint.formats.export_folder import (
    ExportSource,
    count_numbers,
    facts_of,
    find_export_damage,
    origin_of,
    publish_export,
    read_about,
    same_export,
)
from worldsmith.checkpoint.formats.family_formats import OWN, DType, ExportOptions
from worldsmith.checkpoint.formats.registry import formats_of
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.checkpoint.formats.write_safetensors import GIGABYTE, write_safetensors
from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT
from worldsmith.checkpoint.sources.joined_weights import JoinedWeights
from worldsmith.checkpoint.sources.vision_tower import find_tower
from worldsmith.checkpoint.sources.weight_source import WeightSource, open_weights
from worldsmith.config.errors import UserError
from worldsmith.files.atomic import folder_aside
from worldsmith.files.foreign import require_only
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, STEM = "config.json", "model"


@dataclass(frozen=True, slots=True)
class Layout:
    """How such a folder is written."""

    format: str
    """Its name, which the folder states."""
    key: Callable[[str], str]
    """Native name → name in the files."""
    config: Callable[[ModelSpec, Mapping[str, Any]], dict[str, Any]]
    """The content of config.json, out of the model and of what the folder says about itself."""
    facts: Callable[[ModelSpec], dict[str, Any]] = lambda spec: {}
    """What the card tells of the model."""
    prepare: Callable[[WeightSource, ModelSpec], WeightSource] = lambda source, spec: source
    """Gives weights the form that they have in the files."""
    packages: tuple[str, ...] = ("torch", "safetensors")
    """Packages whose versions are recorded."""


def export_stored(layout: Layout, model: StoredModel, out: Path, options: ExportOptions) -> bool:
    """`export_weights` of a model on disk."""
    if options.merge:
        model.require_effect()
    source, card = model.open(merge=options.merge), facts_of(model)
    if options.tower is not None:
        tower = tower_of(model, options.tower)
        source, card = with_tower(source, tower, model.formats.tower), {**card, "vision_tower": tower.describe}
    spec = model.merged_spec if options.merge else model.spec
    return export_weights(
        layout,
        layout.prepare(source, spec),
        spec,
        out,
        defaults=model.defaults,
        origin=origin_of(model, merge=options.merge),
        card=card,
        average=model.average,
        tree=model.tree,
        dtype=options.dtype,
        force=options.force,
    )


def named_tensors(layout: Layout, model: StoredModel, options: ExportOptions) -> dict[str, Tensor]:
    """`Export.tensors` of such a layout; all of them at once, where `export_stored` reads them one after the other."""
    import torch

    spec = model.merged_spec if options.merge else model.spec
    source = layout.prepare(model.open(merge=options.merge), spec)
    dtype_of = model.formats.stored_dtype(options.dtype, spec.config)
    tensors = {name: torch.empty(shape, dtype=dtype_of(name)) for name, shape in source.shapes.items()}
    source.read_into(tensors, average=model.average)
    return {layout.key(name): tensor for name, tensor in tensors.items()}


def tower_of(model: StoredModel, place: str) -> WeightSource:
    """The vision tower at `place`, or with OWN that which the model came with. Raises UserError when there is none."""
    if place != OWN:
        source = open_weights(place, field="--vision-tower")
    elif model.tree is None:
        source = open_weights(model.folder, field="model", family=model.spec.name)
    elif model.start is not None:
        source = open_weights(model.base or model.start.path, field=model.start.field, family=model.spec.name)
    else:
        raise UserError(f"--vision-tower own: {model.folder} started from random weights, which have no vision tower")
    tower = find_tower(source)
    if tower is None:
        raise UserError(f"--vision-tower {place}: {source.describe} has no vision tower")
    return tower


def with_tower(source: WeightSource, tower: WeightSource, prefix: str) -> WeightSource:
    """The weights of both, the tower's names after `prefix`."""
    places = {name: (source, name) for name in source.shapes}
    places |= {prefix + name: (tower, name) for name in tower.shapes}
    return JoinedWeights(f"{source.describe} with {tower.describe}", places)


def export_weights(
    layout: Layout,
    source: WeightSource,
    spec: ModelSpec,
    out: str | Path,
    *,
    defaults: Any = None,
    origin: ExportSource | None = None,
    card: Mapping[str, Any] | None = None,
    average: bool = False,
    tree: Mapping[str, Any] | None = None,
    dtype: DType = "bfloat16",
    force: bool = False,
    max_shard_size: int = 5 * GIGABYTE,
) -> bool:
    """Writes the folder `out` from the weights of `source`; False when the same export is there already.

    The folder appears when it is complete. Raises FileExistsError when `out` is something else (`force` replaces an
    older export, never other files).
    """
    out = Path(out)
    origin = origin or ExportSource()
    formats = formats_of(spec.name)
    present = read_about(out, CONFIG)
    about = {
        "worldsmith": __version__,
        "versions": {name: version(name) for name in layout.packages},
        "format": layout.format,
        "source": asdict(origin),
        "dtype": dtype,
        "weights_sha256": (present or {}).get("weights_sha256", ""),
        "generation": asdict(defaults) if defaults is not None else {},
        "model": formats.exported_config(spec),
        "card": {"parameters": count_numbers(source.shapes), **layout.facts(spec), **(card or {})},
    }
    damage = None if present is None else find_export_damage(out, present)
    if present is not None and not force and (damage is not None or not same_export(present, about)):
        raise another_export(out, damage)
    if present is not None and force:
        require_only(out, {ABOUT, *present["files"]})
    with folder_aside(out) as aside:
        keys = {name: layout.key(name) for name in source.shapes}
        dtype_of = formats.stored_dtype(dtype, spec.config)
        about["weights_sha256"] = write_safetensors(
            aside, STEM, source, keys, dtype_of, average=average, max_shard_size=max_shard_size
        )
        if present is not None and same_export(present, about) and damage is None:
            return False
        if present is not None and not force:
            raise another_export(out, damage)
        formats.pack_components(spec.config, aside)
        if tree is not None:
            formats.pack_run(tree, aside)
        (aside / CONFIG).write_text(json.dumps(layout.config(spec, about), indent=2) + "\n", encoding="utf-8")
        (aside / "README.md").write_text(formats.card(out.name, about), encoding="utf-8")
        publish_export(aside, out, about, force=force)
    return True


def another_export(out: Path, damage: str | None) -> FileExistsError:
    state = "another export" if damage is None else f"damaged ({damage})"
    return FileExistsError(f"{out} is {state}; use --force to replace it, or choose another folder")
