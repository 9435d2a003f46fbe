"""Native exports of weights that no run has stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from worldsmith.checkpoint.formats.export_weights import LAYOUT, ExportedModel, export_weights
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.models.spec import ModelSpec

WRITING = ("dtype", "force", "max_shard_size")


def export_native(weights: WeightSource, spec: ModelSpec, out: Path, **facts: Any) -> bool:
    """Exports with the fields of `ExportedModel` and the arguments of `export_weights`."""
    writing = {name: facts.pop(name) for name in WRITING if name in facts}
    return export_weights(LAYOUT, ExportedModel(weights, spec, **facts), out, **writing)
