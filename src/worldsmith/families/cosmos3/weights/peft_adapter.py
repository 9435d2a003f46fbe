"""Adapters (LoRA) as a folder in PEFT's format, for `diffusers.Cosmos3OmniTransformer`; both ways.

One file serves both libraries: PEFT reads the scale from `adapter_config.json`, diffusers' `load_lora_adapter` from the
header of `adapter_model.safetensors`, where it looks for it under the prefix of the tensor names.
"""

from __future__ import annotations

from functools import partial

from worldsmith.checkpoint.formats import peft_adapter
from worldsmith.checkpoint.formats.peft_adapter import diffusers_header
from worldsmith.checkpoint.formats.stored_adapter import AdapterLayout
from worldsmith.families.cosmos3.sampling.defaults import Cosmos3Defaults
from worldsmith.families.cosmos3.weights.diffusers_keys import diffusers_to_native, native_to_diffusers

LAYOUT = AdapterLayout("cosmos3", native_to_diffusers, diffusers_to_native, "diffusers", diffusers_header)
ADAPTER = peft_adapter.export_of(LAYOUT)
export_adapter = partial(peft_adapter.export_adapter, LAYOUT, defaults=Cosmos3Defaults())
read_adapter = partial(peft_adapter.read_adapter, LAYOUT)
load_adapter = partial(peft_adapter.load_adapter, LAYOUT)
