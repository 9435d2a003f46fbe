"""Adapters (LoRA) as a folder in PEFT's format, for the models of transformers, whose names are the native ones."""

from __future__ import annotations

from functools import partial

from worldsmith.checkpoint.formats import peft_adapter
from worldsmith.checkpoint.formats.stored_adapter import AdapterLayout

LAYOUT = AdapterLayout("vision_language", str, str, "transformers")
ADAPTER = peft_adapter.export_of(LAYOUT)
read_adapter = partial(peft_adapter.read_adapter, LAYOUT)
load_adapter = partial(peft_adapter.load_adapter, LAYOUT)
