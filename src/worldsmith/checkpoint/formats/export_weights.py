"""Exports that hold a model's weights in safetensors files, with a config.json and whatever belongs to the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from worldsmith import __version__
from worldsmith.checkpoint.formats.export_folder import (
    ExportSource,
    count_numbers,
    facts_of,
    is_whole,
    origin_of,
    publish_export,
    read_about,
    same_export,
)
from worldsmith.checkpoint.formats.family_formats import DType, ExportOptions
from worldsmith.checkpoint.formats.registry import formats_of
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.checkpoint.formats.write_safetensors import GIGABYTE, write_safetensors
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.files.atomic import folder_aside
from worldsmith.models.spec import ModelSpec

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
    packages: tuple[str, ...] = ("torch", "safetensors")
    """Packages whose versions are recorded."""


def export_stored(layout: Layout, model: StoredModel, out: Path, options: ExportOptions) -> bool:
    """`export_weights` of a model on disk."""
    if options.merge:
        model.require_effect()
    return export_weights(
        layout,
        model.open(merge=options.merge),
        model.merged_spec if options.merge else model.spec,
        out,
        defaults=model.defaults,
        origin=origin_of(model, merge=options.merge),
        card=facts_of(model),
        average=model.average,
        dtype=options.dtype,
        force=options.force,
    )


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
    if present is not None and not force and not (same_export(present, about) and is_whole(out, present)):
        raise another_export(out)
    with folder_aside(out) as aside:
        keys = {name: layout.key(name) for name in source.shapes}
        about["weights_sha256"] = write_safetensors(
            aside, STEM, source, keys, formats.stored_dtype(dtype), average=average, max_shard_size=max_shard_size
        )
        if present is not None and same_export(present, about) and is_whole(out, present):
            return False
        if present is not None and not force:
            raise another_export(out)
        formats.pack_components(spec.config, aside)
        (aside / CONFIG).write_text(json.dumps(layout.config(spec, about), indent=2) + "\n", encoding="utf-8")
        (aside / "README.md").write_text(formats.card(out.name, about), encoding="utf-8")
        publish_export(aside, out, about)
    return True


def another_export(out: Path) -> FileExistsError:
    return FileExistsError(f"{out} is another export or damaged; use --force to replace it, or choose another folder")
