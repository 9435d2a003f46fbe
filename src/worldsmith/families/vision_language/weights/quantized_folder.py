"""A folder of transformers whose linear layers are quantized: how it is made, and how it is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from worldsmith import __version__
from worldsmith.checkpoint.formats.export_folder import facts_of, origin_of
from worldsmith.checkpoint.formats.export_weights import CONFIG, STEM, write_safetensors
from worldsmith.checkpoint.formats.family_formats import formats_of
from worldsmith.checkpoint.formats.quantizer import Method, Quantizer, Scheme
from worldsmith.config.errors import UserError
from worldsmith.families.vision_language.generation import generate_tokens
from worldsmith.families.vision_language.inputs import Conversation
from worldsmith.families.vision_language.published import VISUAL
from worldsmith.families.vision_language.weights.calibration import watch_inputs
from worldsmith.families.vision_language.weights.conversion import FolderWeights, find_conversion
from worldsmith.families.vision_language.weights.export_folder import (
    base_config,
    base_facts,
    folder_config,
    quantized_card,
)
from worldsmith.families.vision_language.weights.quantization import (
    Quantization,
    QuantizedWeights,
    first_together,
    require_library,
)
from worldsmith.files.model_folder import load_from_folder
from worldsmith.models.weights.finite import non_finite, require_finite

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.checkpoint.formats.stored_model import StoredModel

LEAST_SHARE = 0.5
"""Of the decoder's numbers: what quantizes less of them is not worth its name."""


class ReasonerQuantizer(Quantizer):
    """Raises UserError for a model whose weights do not lie in linear layers."""

    def __init__(self, model: StoredModel, scheme: Scheme, group_size: int | None, method: Method) -> None:
        self.model, self.method, self.scheme, self.spec = model, method, scheme, model.merged_spec
        model.require_effect()
        conversion = find_conversion(base_config(self.spec))
        self.quantization = Quantization(scheme, conversion.model, group_size)
        source = model.open()  # transformers reads the network's own names, too
        source = source if conversion.only_renames else FolderWeights(source, conversion)
        self.weights = QuantizedWeights(source, self.quantization, average=model.average)
        self.needs_data = self.quantization.needs_inputs or method == "gptq"
        self.sizes = self.weights.sizes()
        self.require_linear(conversion.model)

    def require_linear(self, network: Any) -> None:
        layers = [n for n, module in network.named_modules() if type(module).__name__ in network._no_split_modules]
        inside = tuple(f"{name}." for name in layers if "visual" not in name)
        decoder = sum(p.numel() for name, p in network.named_parameters() if name.startswith(inside))
        if self.sizes.quantized < LEAST_SHARE * decoder:
            raise UserError(
                f"{self.model.folder}: only {self.sizes.quantized} of the {decoder} numbers of its decoder are in "
                "linear layers; experts in one tensor have no quantized form in transformers and are not quantized here"
            )

    def observe(self, model: Any, samples: Iterable[Any], *, normalize: Callable[[Tensor, str], Tensor]) -> None:
        layers = self.quantization.layers
        moments = {first_together(layer, layers) for layer in layers} if self.method == "gptq" else set()
        with watch_inputs(model.network, layers, moments) as seen:
            for sample in samples:
                model.read(sample, normalize=normalize)
        unseen = [name for name in layers if name not in seen.largest]
        if unseen:
            raise UserError(f"no sample has reached {unseen[0]} ({len(unseen)} layers); give other data")
        self.weights.seen = seen

    def fill(self, folder: Path, name: str) -> dict[str, Any]:
        model, formats = self.model, formats_of(self.model.spec.name)
        about: dict[str, Any] = {
            "worldsmith": __version__,
            "versions": {p: version(p) for p in ("torch", "safetensors", "transformers", "compressed-tensors")},
            "format": "quantized",
            "scheme": self.scheme,
            "method": self.method,
            "source": asdict(origin_of(model, merge=True)),
            "dtype": "bfloat16",
            "generation": {},
            "model": formats.exported_config(
                replace(self.spec, config=replace(self.spec.config, precision="bfloat16"))
            ),
            "card": {**base_facts(self.spec), **facts_of(model), "parameters": self.sizes.numbers},
        }
        plain, own = formats.stored_dtype("bfloat16", self.spec.config), self.weights.dtypes
        names = {key: key for key in self.weights.shapes}
        dtypes = {key: own.get(key) or plain(key) for key in names}
        about["weights_sha256"] = write_safetensors(folder, STEM, self.weights, names, dtypes.__getitem__)
        formats.pack_components(self.spec.config, folder, model.tree)
        config = {**folder_config(self.spec, about), "quantization_config": self.quantization.config()}
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(quantized_card(name, about), encoding="utf-8")
        return about


class QuantizedReasoner:
    """A reasoner with quantized weights, as transformers runs it; it cannot be trained.

    The first forward pass makes the weights dense. Activations are rounded as the scheme states.
    """

    def __init__(self, folder: Path, device: str | torch.device) -> None:
        self.folder, self.device = folder, torch.device(device)
        visual = load_from_folder(AutoConfig, folder).model_type in VISUAL
        kind: Any = AutoModelForImageTextToText if visual else AutoModelForCausalLM
        self.network: Any = load_from_folder(kind, folder, dtype="auto").to(self.device).eval()
        require_finite(str(folder), non_finite(self.network.state_dict()))

    def generate(self, prompts: Sequence[Conversation], **how: Any) -> list[list[int]]:
        """Generates answers like `VisionLanguageModel.generate`."""
        return generate_tokens(self.network, prompts, device=self.device, **how)


def load_quantized(folder: Path, device: str | torch.device) -> QuantizedReasoner:
    """Loads a quantized model folder. Raises UserError if compressed-tensors is missing."""
    require_library()
    return QuantizedReasoner(folder, device)
