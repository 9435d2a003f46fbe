"""A reasoner with quantized weights, as transformers loads and runs it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from worldsmith.families.vision_language.generation import generate
from worldsmith.families.vision_language.inputs import Conversation
from worldsmith.families.vision_language.published import VISUAL
from worldsmith.files.model_folder import load_from_folder
from worldsmith.models.weights.finite import non_finite, require_finite


class QuantizedReasoner:
    """It can be asked, and not trained. The first question makes weights dense; activations are rounded as stated."""

    def __init__(self, folder: Path, device: str | torch.device) -> None:
        self.folder, self.device = folder, torch.device(device)
        visual = load_from_folder(AutoConfig, folder).model_type in VISUAL
        kind: Any = AutoModelForImageTextToText if visual else AutoModelForCausalLM
        self.network: Any = load_from_folder(kind, folder, dtype="auto").to(self.device).eval()
        require_finite(str(folder), non_finite(self.network.state_dict()))

    def generate(self, prompts: Sequence[Conversation], **how: Any) -> list[list[int]]:
        """As `VisionLanguageModel.generate`."""
        return generate(self.network, prompts, device=self.device, **how)
