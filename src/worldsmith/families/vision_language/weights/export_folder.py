"""A trained model as a folder that `from_pretrained` of transformers loads, as its base was."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from worldsmith.checkpoint.formats.export_weights import CONFIG, WeightLayout, export_stored_weights, named_tensors
from worldsmith.checkpoint.formats.family_formats import Export
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.families.vision_language.weights.conversion import FolderWeights, find_conversion
from worldsmith.families.vision_language.weights.model_folder import find_folder, model_kind, with_dtype
from worldsmith.files.json_file import read_json_object
from worldsmith.models.model_files import is_local
from worldsmith.models.spec import ModelSpec


def base_config(spec: ModelSpec) -> dict[str, Any]:
    """The config.json of the folder that the model was made from."""
    name = base_name(spec)
    return read_json_object(find_folder(name, field="model.config.policy.backbone.model_name") / CONFIG)


def base_name(spec: ModelSpec) -> str:
    return cast(VisionLanguageModel.Config, spec.config).policy.backbone.model_name


def folder_config(spec: ModelSpec, about: Mapping[str, Any]) -> dict[str, Any]:
    return with_dtype(base_config(spec), about["dtype"])


def facts(spec: ModelSpec) -> dict[str, Any]:
    """What the model is for, and what it was made from."""
    name = base_name(spec)
    return {"kind": model_kind(base_config(spec)), "base": Path(name).name if is_local(name) else name}


def as_in_folder(source: WeightSource, spec: ModelSpec) -> WeightSource:
    """The weights under the names, and in the form, of the folder that the model was made from."""
    return FolderWeights(source, find_conversion(base_config(spec)))


LAYOUT = WeightLayout("hf", str, folder_config, facts, as_in_folder, packages=("torch", "safetensors", "transformers"))
FOLDER = Export(
    "export_hf",
    CONFIG,
    "Hugging Face folder",
    partial(export_stored_weights, LAYOUT),
    partial(named_tensors, LAYOUT),
    of_library=True,
)
