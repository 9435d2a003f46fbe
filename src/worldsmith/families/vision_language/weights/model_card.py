"""The README.md of each kind of exported folder, out of what the folder says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worldsmith.checkpoint.formats.export_folder import origin, parameters

USE = {
    "image-text-to-text": """from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained("{name}", dtype="{dtype}")
processor = AutoProcessor.from_pretrained("{name}")""",
    "text-generation": """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}", dtype="{dtype}")
tokenizer = AutoTokenizer.from_pretrained("{name}")""",
}
"""How a model of each kind is loaded."""


def folder_card(name: str, about: Mapping[str, Any]) -> str:
    """Markdown: what the folder is, where its weights come from, and how it is loaded."""
    settings = f"Config, tokenizer, chat template and preprocessor settings are those of `{about['card']['base']}`."
    ending = "To train from it: `model.config.policy.backbone.model_name` = this folder."
    return model_card(name, about, settings, dtype=about["dtype"], ending=ending)


def quantized_card(name: str, about: Mapping[str, Any]) -> str:
    """Markdown: what the folder is, how its weights are quantized, and how it is loaded."""
    bits = (
        f"The linear layers of its decoder are quantized ({about['scheme']}, in the form of compressed-tensors); the "
        f"rest is in\n{about['dtype']}. `quantization.json` says how it answers beside the model that it was made of."
    )
    ending = "It needs the package `compressed-tensors`, and cannot be trained."
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


WHAT = {"image-text-to-text": "A vision-language model", "text-generation": "A language model"}


def adapter_card(name: str, about: Mapping[str, Any]) -> str:
    """Markdown: what the adapter is, which weights it belongs to, and how PEFT loads it."""
    base = f"`{about['base_model']}`" if about["base_model"] else "the weights that the run started from"
    return f"""---
library_name: peft
tags: [lora]
---

# {name}

Low-rank adapters (rank {about["rank"]}, alpha {about["alpha"]}, {about["layers"]} layers): {origin(about, "ones")}.
They belong to {base}, and to no other weights: `model` below is the model of transformers with them.

```python
from peft import PeftModel

model = PeftModel.from_pretrained(model, "{name}")
```
"""
