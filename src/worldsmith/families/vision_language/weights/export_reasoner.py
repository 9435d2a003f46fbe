"""Exports a model as a folder that `from_pretrained` of transformers loads, with its README.md."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from worldsmith.checkpoint.formats.export_folder import origin, parameters
from worldsmith.checkpoint.formats.export_weights import CONFIG, WeightLayout, export_stored_weights, named_tensors
from worldsmith.checkpoint.formats.family_formats import ExportFormat
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.families.vision_language.weights.conversion import FolderWeights, find_conversion
from worldsmith.families.vision_language.weights.model_folder import find_folder, model_kind, with_dtype
from worldsmith.files.json_file import read_json_object
from worldsmith.models.model_files import is_local
from worldsmith.models.spec import ModelSpec

USE = {
    "image-text-to-text": """from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained("{name}", dtype="{dtype}")
processor = AutoProcessor.from_pretrained("{name}")""",
    "text-generation": """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}", dtype="{dtype}")
tokenizer = AutoTokenizer.from_pretrained("{name}")""",
}
"""Code that loads a model, by task."""
WHAT = {"image-text-to-text": "A vision-language model", "text-generation": "A language model"}


def base_config(spec: ModelSpec) -> dict[str, Any]:
    """Returns the config.json content of the folder from which the model `spec` was built."""
    name = base_name(spec)
    return read_json_object(find_folder(name, field="model.config.policy.backbone.model_name") / CONFIG)


def base_name(spec: ModelSpec) -> str:
    return cast(VisionLanguageModel.Config, spec.config).policy.backbone.model_name


def folder_config(spec: ModelSpec, about: Mapping[str, Any]) -> dict[str, Any]:
    return with_dtype(base_config(spec), about["dtype"])


def base_facts(spec: ModelSpec) -> dict[str, Any]:
    """Returns "kind", the task in transformers' terms, and "base", the name of the base model, for the model card."""
    name = base_name(spec)
    return {"kind": model_kind(base_config(spec)), "base": Path(name).name if is_local(name) else name}


def as_in_folder(source: WeightSource, spec: ModelSpec) -> WeightSource:
    """Returns the weights in `source` with the names and layout of the folder from which the model `spec` was built."""
    return FolderWeights(source, find_conversion(base_config(spec)))


def folder_card(name: str, about: Mapping[str, Any]) -> str:
    """Returns the model card (Markdown) of an exported folder: description, origin of the weights, and how to load it.

    Args:
        name: Name of the folder.
        about: Content of its worldsmith.json.
    """
    settings = f"Config, tokenizer, chat template and preprocessor settings come from `{about['card']['base']}`."
    ending = "To train from it, set `model.config.policy.backbone.model_name` to this folder."
    return model_card(name, about, settings, dtype=about["dtype"], ending=ending)


def quantized_card(name: str, about: Mapping[str, Any]) -> str:
    """Returns the model card (Markdown) of a quantized model: its quantization, and how to load it.

    Args:
        name: Name of the folder.
        about: Content of its worldsmith.json.
    """
    bits = (
        f"The linear layers of its decoder are quantized ({about['scheme']}, in compressed-tensors format); the "
        f"rest is in\n{about['dtype']}. `quantization.json` compares its answers with those of the original model."
    )
    ending = "The model requires the package `compressed-tensors`. It cannot be trained."
    return model_card(name, about, bits, dtype="auto", ending=ending)


def model_card(name: str, about: Mapping[str, Any], told: str, *, dtype: str, ending: str) -> str:
    kind = about["card"]["kind"]
    return f"""---
library_name: transformers
pipeline_tag: {kind}
---

# {name}

{WHAT[kind]}{parameters(about)}: {origin(about, "weights")}.
{told}

```python
{USE[kind].format(name=name, dtype=dtype)}
```

{ending}
"""


def adapter_card(name: str, about: Mapping[str, Any]) -> str:
    """Returns the model card (Markdown) of a LoRA adapter: its base weights, and how PEFT loads it.

    Args:
        name: Name of the folder.
        about: Content of its worldsmith.json.
    """
    base = f"`{about['base_model']}`" if about["base_model"] else "the initial weights of the run"
    return f"""---
library_name: peft
tags: [lora]
---

# {name}

LoRA adapters (rank {about["rank"]}, alpha {about["alpha"]}, {about["layers"]} layers): {origin(about, "ones")}.
They apply only to {base}: `model` below is the transformers model with these base weights.

```python
from peft import PeftModel

model = PeftModel.from_pretrained(model, "{name}")
```
"""


LAYOUT = WeightLayout(
    "hf", str, folder_config, base_facts, as_in_folder, packages=("torch", "safetensors", "transformers")
)
FOLDER = ExportFormat(
    "export_hf",
    CONFIG,
    "Hugging Face folder",
    partial(export_stored_weights, LAYOUT),
    partial(named_tensors, LAYOUT),
    of_library=True,
)
