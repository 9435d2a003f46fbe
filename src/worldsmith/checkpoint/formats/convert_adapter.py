"""Adapters (LoRA) of others into a folder of ours: out of a file for `load_lora_weights`, or a checkpoint of SAT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from worldsmith.checkpoint.formats.peft_adapter import (
    PIPELINE_WEIGHTS,
    export_adapter,
    pipeline_file,
    read_pipeline_file,
)
from worldsmith.checkpoint.formats.registry import FORMATS, formats_of
from worldsmith.checkpoint.formats.stored_adapter import StoredAdapter
from worldsmith.checkpoint.sources.weight_source import open_weights
from worldsmith.config.errors import UserError
from worldsmith.models.lora import is_adapter
from worldsmith.models.model_files import local_folder


def convert_adapter(path: str, out: str | Path, *, lora_alpha: float | None = None, force: bool = False) -> str:
    """Writes the folder `out`, and says what it holds.

    `lora_alpha` is that of the adapters where the source does not say it; 1 for SAT's. Raises UserError for a source
    without adapters, ValueError for adapters that are not understood.
    """
    family, stored = read(path, lora_alpha)
    layout = formats_of(family).adapter_layout
    assert layout is not None, "only formats with a layout adapt layers"
    if not export_adapter(layout, stored.weights, out, alpha=stored.alpha, dtype="float32", force=force):
        return f"{out} is complete already, nothing to do"
    return f"{len(stored.layers)} layers of a {family} network, rank {stored.rank}, alpha {stored.alpha}"


def read(path: str, lora_alpha: float | None) -> tuple[str, StoredAdapter]:
    """The family and the adapters in a source."""
    root = local_folder(path, file_patterns=("*.safetensors",), field="SOURCE")
    file = pipeline_file(root)
    if file is not None:
        for formats in FORMATS.all():
            if formats.adapter_layout is not None:
                stored = read_pipeline_file(formats.adapter_layout, file, lora_alpha)
                if formats.adapts(stored.layers):
                    return formats.family, stored
        raise UserError(f"{file} adapts layers of no network that is known here")
    source: Any = open_weights(path, field="SOURCE")
    weights = {name: source.read(name) for name in source.shapes if is_adapter(name)}
    alpha = lora_alpha or source.adapter_alpha
    if not weights or alpha is None or not formats_of(source.family).adapts([]):
        raise UserError(
            f"{source.describe}: expected {PIPELINE_WEIGHTS}, or a checkpoint of SAT with adapters; of a run, "
            "`worldsmith export RUN --format adapter` writes them"
        )
    rank = min(len(matrix) for name, matrix in weights.items() if ".lora_A." in name)
    return source.family, StoredAdapter(root, rank, alpha, weights)
