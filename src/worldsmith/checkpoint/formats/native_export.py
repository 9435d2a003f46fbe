"""The native Hugging Face style export: `config.json`, sharded safetensors with `model.net.…` keys, the components."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from worldsmith.checkpoint.formats.export_weights import CONFIG, Layout, export_stored, export_weights, named_tensors
from worldsmith.checkpoint.formats.family_formats import NATIVE_PREFIX, Export
from worldsmith.checkpoint.formats.registry import formats_of
from worldsmith.models.spec import ModelSpec


def native_config(spec: ModelSpec, about: Mapping[str, Any]) -> dict[str, Any]:
    """The content of config.json: the model type that readers look for, and the model's whole config."""
    return {"model_type": formats_of(spec.name).native_type(), "dtype": about["dtype"], "model": about["model"]}


LAYOUT = Layout("native", NATIVE_PREFIX.__add__, native_config)
NATIVE = Export(
    "export_native",
    CONFIG,
    "weights",
    partial(export_stored, LAYOUT),
    partial(named_tensors, LAYOUT),
    keeps_adapters=True,
    keeps_tower=True,
    has_schedule=True,
)
export_native = partial(export_weights, LAYOUT)
"""`export_weights` in this layout."""
