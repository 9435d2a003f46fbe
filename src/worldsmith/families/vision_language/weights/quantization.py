"""Quantizes the linear layers of a transformers model with compressed-tensors, writes the folder and loads it."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from worldsmith.checkpoint.formats.export_folder import count_elements, facts_of, origin_of, state_versions
from worldsmith.checkpoint.formats.export_weights import CONFIG, STEM, write_safetensors
from worldsmith.checkpoint.formats.family_formats import formats_of
from worldsmith.checkpoint.formats.quantizer import Method, Quantizer, Scheme, Sizes
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.errors import UserError
from worldsmith.families.vision_language.generation import generate_tokens
from worldsmith.families.vision_language.inputs import Conversation
from worldsmith.families.vision_language.published import VISUAL
from worldsmith.families.vision_language.weights.calibration import InputStatistics, round_columns, watch_inputs
from worldsmith.families.vision_language.weights.conversion import FolderWeights, find_conversion
from worldsmith.families.vision_language.weights.export_reasoner import (
    base_config,
    base_facts,
    folder_config,
    quantized_card,
)
from worldsmith.files.untrusted_folder import load_from_folder
from worldsmith.models.weights.check_finite import non_finite, require_finite

DTYPE = torch.bfloat16
"""Dtype of scales and of all weights that are not quantized."""
IGNORED = ["lm_head", r"re:.*visual\..*", r"re:.*mlp\.gate$"]
"""Linear layers that are not quantized: the head, the vision tower with its projector, expert routers."""
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers with the same input, which vLLM fuses: their NVFP4 weights need the same global scale."""
MIN_QUANTIZED = 0.5
"""Minimum fraction of the decoder's weights that must be quantized."""


class Quantization:
    """Quantization scheme for the linear layers of a transformers network.

    Weights that share a scale form a group, such as consecutive weights of a row. The scale of a group is chosen so
    that the largest absolute weight of the group is just representable.

    Args:
        scheme: Name of a preset scheme of compressed-tensors.
        network: The transformers model; it may be on the meta device.
        group_size: Number of weights per group; None: as in the scheme.

    Raises:
        UserError: If the scheme does not fit the network, or compressed-tensors is not installed.
    """

    def __init__(self, scheme: Scheme, network: nn.Module, group_size: int | None = None) -> None:
        require_library()
        from compressed_tensors.compressors.format import infer_module_format
        from compressed_tensors.quantization import preset_name_to_scheme
        from compressed_tensors.utils import match_named_modules

        self.scheme = preset_name_to_scheme(scheme, ["Linear"])
        self.weights, self.inputs = self.scheme.weights, self.scheme.input_activations
        if group_size is not None:
            if self.weights.strategy != "group":
                raise UserError(f"group_size {group_size} has no effect: {scheme} has fixed groups; omit it")
            self.weights.group_size = group_size
        self.scheme.format = infer_module_format(torch.nn.Linear, self.scheme)
        found = match_named_modules(network, self.scheme.targets, IGNORED)
        self.layers: dict[str, nn.Linear] = {name: layer for name, layer in found if isinstance(layer, torch.nn.Linear)}
        self.require_groups(scheme)

    @property
    def has_global_scale(self) -> bool:
        """Whether the scales of groups are multiplied by one more scale per tensor."""
        return bool(self.weights.strategy == "tensor_group")

    @property
    def needs_inputs(self) -> bool:
        """Whether the scheme has static scales of activations, which require calibration data."""
        return self.inputs is not None and self.inputs.dynamic is not True

    def require_groups(self, scheme: str) -> None:
        """Raises UserError if the number of inputs of a layer is not a multiple of the group size of `scheme`."""
        size = self.weights.group_size
        odd = {name: layer.in_features for name, layer in self.layers.items() if size and layer.in_features % size}
        if odd:
            name, count = next(iter(odd.items()))
            fitting = [
                s for s in (64, 32, 16) if s < size and all(x.in_features % s == 0 for x in self.layers.values())
            ]
            way = (
                f"use --group-size {fitting[0]}"
                if fitting and self.weights.strategy == "group"
                else "choose another scheme"
            )
            raise UserError(
                f"{scheme} quantizes weights in groups of {size}, but {name} has {count} inputs ({len(odd)} layers "
                f"do not match); {way}"
            )

    def compress(
        self, weight: Tensor, largest: Tensor, largest_input: Tensor | None, moments: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Returns the stored tensors of a quantized layer, such as `weight_scale`, by their names within the layer.

        Args:
            weight: [outputs, inputs].
            largest: Largest absolute weight of all layers that share a global scale with the layer, as a scalar or [1].
            largest_input: Largest absolute input of the layer in calibration; None if the scheme does not need it.
            moments: Sum of x xᵀ over the inputs x, for GPTQ; None: each weight is rounded to the nearest value.
        """
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

        weight = weight.float()
        top = self.group_maxima(weight)
        state: dict[str, Tensor] = {"weight": weight}
        if self.has_global_scale:
            shared = state["weight_global_scale"] = generate_gparam(-largest, largest)
            state["weight_scale"], _ = calculate_qparams(-top, top, self.weights, global_scale=shared)
        else:  # rounded before it is used, because the folder stores it in `DTYPE`
            state["weight_scale"] = calculate_qparams(-top, top, self.weights)[0].to(DTYPE).float()
        if moments is not None:
            state["weight"] = self.round_columns(state, moments)
        packed: dict[str, Tensor] = BaseCompressor.get_value_from_registry(self.scheme.format.value).compress(
            state, self.scheme
        )
        if not self.has_global_scale:
            packed["weight_scale"] = packed["weight_scale"].to(DTYPE)
        if self.needs_inputs:
            assert largest_input is not None
            if self.inputs.strategy == "tensor_group":
                packed["input_global_scale"] = generate_gparam(-largest_input, largest_input)
            else:
                packed["input_scale"] = calculate_qparams(-largest_input, largest_input, self.inputs)[0].to(DTYPE)
        return packed

    def round_columns(self, state: Mapping[str, Tensor], moments: Tensor) -> Tensor:
        """Returns the weight of a layer, rounded by GPTQ, on the CPU.

        Args:
            state: "weight" [outputs, inputs], "weight_scale" and, if the scheme has it, "weight_global_scale".
            moments: Sum of x xᵀ over the inputs x, on the device for the computation.
        """
        from compressed_tensors.quantization.lifecycle.forward import fake_quantize

        each = self.weights.model_copy(update={"strategy": "channel", "group_size": None})
        scales = (state["weight_scale"].float() / state.get("weight_global_scale", 1.0)).to(moments.device)
        size = self.weights.group_size or state["weight"].shape[1]

        def nearest(column: Tensor, index: int) -> Tensor:
            scale = scales if self.weights.strategy == "tensor" else scales[:, index // size, None]
            return fake_quantize(column[:, None], scale.expand(len(column), 1), None, each)[:, 0]

        return round_columns(state["weight"].to(moments.device), moments, nearest).cpu()

    def group_maxima(self, weight: Tensor) -> Tensor:
        """Returns the largest absolute weight of each group with a scale of its own; `weight` is [outputs, inputs]."""
        if self.weights.strategy == "tensor":
            return weight.abs().amax().reshape(1)
        if self.weights.strategy == "channel":
            return weight.abs().amax(dim=1, keepdim=True)
        return weight.abs().unflatten(1, (-1, self.weights.group_size)).amax(dim=2)

    def config(self) -> dict[str, Any]:
        """Returns the section `quantization_config` of config.json for this scheme."""
        from compressed_tensors import __version__
        from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus

        stated = QuantizationConfig(
            config_groups={"group_0": self.scheme},
            format=self.scheme.format.value,
            ignore=IGNORED,
            quantization_status=QuantizationStatus.COMPRESSED,
        )
        return {"version": __version__, **stated.model_dump(mode="json")}


class QuantizedWeights(WeightSource):
    """Weight source that quantizes linear layers when they are read; other weights are unchanged.

    Args:
        source: Weights in the layout of the model folder.
        quantization: Scheme, and the layers to quantize.
        average: Whether the EMA weights are read.
    """

    def __init__(self, source: WeightSource, quantization: Quantization, *, average: bool) -> None:
        self.source, self.quantization, self.average = source, quantization, average
        self.path, self.describe, self.settings = source.path, source.describe, source.settings
        self.seen = InputStatistics()
        """Statistics of layer inputs from the calibration; empty without calibration."""
        self.shapes = {
            key: shape for key, shape in source.shapes.items() if key.removesuffix(".weight") not in quantization.layers
        }
        self.dtypes, self.parts = dict[str, torch.dtype](), dict[str, tuple[str, str]]()
        blanks: dict[tuple[int, int], dict[str, Tensor]] = {}
        one = torch.ones(1)
        for layer, linear in quantization.layers.items():
            size = linear.out_features, linear.in_features
            if size not in blanks:
                blanks[size] = quantization.compress(torch.ones(size), one, one)
            for part, blank in blanks[size].items():
                name = f"{layer}.{part}"
                self.shapes[name], self.dtypes[name], self.parts[name] = list(blank.shape), blank.dtype, (layer, part)

    def sizes(self) -> Sizes:
        before = count_elements(self.source.shapes)
        quantized = sum(layer.weight.numel() for layer in self.quantization.layers.values())
        after = sum(math.prod(shape) * self.dtypes.get(name, DTYPE).itemsize for name, shape in self.shapes.items())
        return Sizes(before, quantized, before * DTYPE.itemsize, after)

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        plain = {name: tensor for name, tensor in tensors.items() if name not in self.parts}
        self.source.read_into(plain, average=self.average)
        layers: dict[str, dict[str, Tensor]] = {}
        for name in tensors.keys() & self.parts.keys():
            layer, part = self.parts[name]
            layers.setdefault(layer, {})[part] = tensors[name]
        for layer, parts in layers.items():
            made = self.quantization.compress(
                self.weight(layer),
                self.largest_of_group(layer),
                self.seen.largest.get(layer),
                self.seen.moments.get(first_with_same_input(layer, self.quantization.layers)),
            )
            for part, tensor in parts.items():
                tensor.copy_(made[part])

    def weight(self, layer: str) -> Tensor:
        return self.source.read(f"{layer}.weight", average=self.average).float()

    def largest_of_group(self, layer: str) -> Tensor:
        """Returns the largest absolute weight of all layers that share a global scale with `layer`, including `layer`.

        Without global scales in the scheme, the result is 1.
        """
        if not self.quantization.has_global_scale:
            return torch.ones(1)
        near = layers_with_same_input(layer, self.quantization.layers)
        return torch.stack([self.weight(other).abs().amax() for other in near]).amax()

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        return self.dtypes[name] if name in self.dtypes else self.source.dtype(name, average=self.average)


def layers_with_same_input(layer: str, layers: Collection[str]) -> list[str]:
    """Returns those of `layers` that have the same input as `layer`, such as q_proj, k_proj and v_proj.

    `layer` is one of them.
    """
    before, _, name = layer.rpartition(".")
    group = next((names for names in TOGETHER if name in names), (name,))
    return [path for path in (f"{before}.{other}" for other in group) if path in layers]


def first_with_same_input(layer: str, layers: Collection[str]) -> str:
    return layers_with_same_input(layer, layers)[0]


def require_library() -> None:
    """Raises UserError if compressed-tensors is not installed."""
    if importlib.util.find_spec("compressed_tensors") is None:
        raise UserError(
            "quantized models need the library 'compressed-tensors', which is not installed: `pip install "
            "'worldsmith[quantize]'`"
        )


class ReasonerQuantizer(Quantizer):
    """Quantizer of a stored vision-language model.

    Args:
        model: The stored model.
        scheme: Name of a preset scheme of compressed-tensors.
        group_size: Number of weights per group; None: as in the scheme.
        method: Rounding method, "nearest" or "gptq".

    Raises:
        UserError: If the scheme does not fit the model, or too few of its weights are in linear layers.
    """

    def __init__(self, model: StoredModel, scheme: Scheme, group_size: int | None, method: Method) -> None:
        self.model, self.method, self.scheme, self.spec = model, method, scheme, model.merged_spec
        model.require_effect()
        conversion = find_conversion(base_config(self.spec))
        self.quantization = Quantization(scheme, conversion.model, group_size)
        source = model.open()  # transformers also loads tensors with the names of the network
        source = source if conversion.only_renames else FolderWeights(source, conversion)
        self.weights = QuantizedWeights(source, self.quantization, average=model.average)
        self.needs_data = self.quantization.needs_inputs or method == "gptq"
        self.sizes = self.weights.sizes()
        self.require_linear(conversion.model)

    def require_linear(self, network: Any) -> None:
        layers = [n for n, module in network.named_modules() if type(module).__name__ in network._no_split_modules]
        inside = tuple(f"{name}." for name in layers if "visual" not in name)
        decoder = sum(p.numel() for name, p in network.named_parameters() if name.startswith(inside))
        if self.sizes.quantized < MIN_QUANTIZED * decoder:
            raise UserError(
                f"{self.model.folder}: only {self.sizes.quantized} of the {decoder} parameters of its decoder are "
                "in linear layers; experts that are stored as one tensor cannot be quantized"
            )

    def observe(self, model: Any, samples: Iterable[Any], *, normalize: Callable[[Tensor, str], Tensor]) -> None:
        layers = self.quantization.layers
        moments = {first_with_same_input(layer, layers) for layer in layers} if self.method == "gptq" else set()
        with watch_inputs(model.network, layers, moments) as seen:
            for sample in samples:
                model.read(sample, normalize=normalize)
        unseen = [name for name in layers if name not in seen.largest]
        if unseen:
            raise UserError(
                f"no calibration sample reached {unseen[0]} ({len(unseen)} layers in total); use other calibration data"
            )
        self.weights.seen = seen

    def fill(self, folder: Path, name: str) -> dict[str, Any]:
        model, formats = self.model, formats_of(self.model.spec.name)
        about: dict[str, Any] = {
            **state_versions("quantized", "torch", "safetensors", "transformers", "compressed-tensors"),
            "scheme": self.scheme,
            "method": self.method,
            "source": origin_of(model, merge=True).as_data(),
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
    """Vision-language model with quantized weights, run by transformers; it cannot be trained.

    The first forward pass dequantizes the weights. Activations are rounded as the scheme specifies.

    Args:
        folder: The quantized model folder.
        device: Device of the model.
    """

    def __init__(self, folder: Path, device: str | torch.device) -> None:
        self.folder, self.device = folder, torch.device(device)
        visual = load_from_folder(AutoConfig, folder).model_type in VISUAL
        kind: Any = AutoModelForImageTextToText if visual else AutoModelForCausalLM
        self.network: Any = load_from_folder(kind, folder, dtype="auto").to(self.device).eval()
        require_finite(str(folder), non_finite(self.network.state_dict()))

    def generate(self, prompts: Sequence[Conversation], **how: Any) -> list[list[int]]:
        """Returns the token ids of the answer to each prompt.

        `how` are keyword arguments of `generate_tokens`: `normalize`, `pad_token`, `max_new_tokens`, optionally
        `decoding` and `seeds`.
        """
        return generate_tokens(self.network, prompts, device=self.device, **how)


def load_quantized(folder: Path, device: str | torch.device) -> QuantizedReasoner:
    """Loads a quantized model folder onto `device`.

    Raises:
        UserError: If compressed-tensors is not installed, or weights are not finite.
    """
    require_library()
    return QuantizedReasoner(folder, device)
