"""`VisionLanguageFormats`: reads and exports model folders of transformers.

Weights have the same names in the network and in the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from worldsmith.checkpoint.formats import peft_adapter
from worldsmith.checkpoint.formats.family_formats import DType, ExportFormat
from worldsmith.checkpoint.formats.stored_adapter import AdapterLayout
from worldsmith.checkpoint.formats.weight_formats import Joined, Naming, NetworkDifference
from worldsmith.config import Configurable
from worldsmith.config.tree.plain import to_dict
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.families.vision_language.weights.conversion import WeightConversion, find_conversion
from worldsmith.families.vision_language.weights.export_reasoner import FOLDER, adapter_card, folder_card
from worldsmith.families.vision_language.weights.model_folder import (
    CONFIG,
    copy_companions,
    find_folder,
    folder_settings,
    is_quantized,
    model_kind,
    settings_of,
    unexpected_patterns,
    write_media_limits,
)
from worldsmith.files.json_file import read_json_object, section
from worldsmith.models.model_files import lasting_name, read_settings
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import nn

    from worldsmith.checkpoint.formats.quantizer import Method, Quantizer, Scheme
    from worldsmith.checkpoint.formats.stored_model import StoredModel
    from worldsmith.checkpoint.sources.weight_source import WeightSource

FIELD = "model.config.policy.backbone.model_name"
TABLES = re.compile(r"(.*\.)?(embed_tokens|lm_head|wte|embed_in)\.weight|(transformer\.)?word_embeddings\.weight")
"""Matches names of embedding tables and LM heads, by which weights of a transformers model are recognized."""
ADAPTER_LAYOUT = AdapterLayout("vision_language", str, str, "transformers")
"""Layout of LoRA adapters in PEFT's format; weights have the same names here and in transformers."""


class VisionLanguageFormats(peft_adapter.AdapterFormats):
    """Weight formats of vision-language models and text decoders: model folders of transformers, and LoRA adapters."""

    reads = "a folder of Hugging Face transformers: a vision-language model or a text decoder (safetensors)"
    assembled_as = "vlm"
    adapter_layout = ADAPTER_LAYOUT
    advice = f"Set {FIELD} to a folder with the settings of these weights."

    # Reading

    def find_naming(self, keys: Sequence[str], config: Mapping[str, Any]) -> Naming | None:
        if not any(TABLES.fullmatch(key) for key in keys):
            return None
        own, joined = {key: key for key in keys}, dict[str, Joined]()
        if model_kind(config) is not None:
            own, joined = find_conversion(config).read(keys)
        own = {name: key for name, key in own.items() if not key.endswith("rotary_emb.inv_freq")}
        return Naming(self.family, "Hugging Face folder", own, settings_of, joined=joined)

    def settings_of(self, model_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings of the backbone's config.json that affect its output, by dotted path.

        The result is empty if the folder is not on this machine.

        Args:
            model_config: Section `model.config` of a config, as plain data.
        """
        name = section(section(model_config, "policy"), "backbone").get("model_name")
        try:
            return folder_settings(find_folder(str(name), field=FIELD))
        except FileNotFoundError:
            return {}

    def difference(self, settings: Mapping[str, Any], config: Configurable.Config) -> NetworkDifference:
        folder = model_folder(config)
        own, patterns = folder_settings(folder), cache(lambda: unexpected_patterns(folder))
        return NetworkDifference(
            meanings=[
                f"{name} is {value!r} in the weights and {own[name]!r} in the config"
                for name, value in settings.items()
                if name in own and own[name] != value
            ],
            # All tensors, except a tied LM head and those that the transformers class ignores.
            is_required=lambda name: not any(re.search(pattern, name) for pattern in patterns()),
        )

    def model_of(self, source: WeightSource, heads: Sequence[str] = ()) -> ModelSpec:
        return self.spec_of(source.path)

    def read_pipeline(self, folder: Path) -> ModelSpec | None:
        file = folder / CONFIG
        if not file.is_file() or model_kind(read_settings(file.parent)) is None:
            return None
        return self.spec_of(folder)

    def spec_of(self, folder: Path) -> ModelSpec:
        config = VisionLanguageModel.Config()
        self.set_component_folder(config, folder)
        return ModelSpec(name=self.family, config=config)

    def set_component_folder(self, config: Configurable.Config, folder: Path) -> None:
        backbone = model_config(config).policy.backbone
        backbone.model_name, backbone.safetensors_path = str(folder), ""

    # Exporting

    def library_network(self, config: Configurable.Config) -> nn.Module:
        return self.conversion(config).model

    def library_shapes(self, config: Configurable.Config) -> Mapping[str, Sequence[int]]:
        """Returns the shapes of the tensors, by name, in the folder from which the model of `config` was built."""
        conversion = self.conversion(config)
        return {name: value.shape for name, value in conversion.write(conversion.model.state_dict()).items()}

    def conversion(self, config: Configurable.Config) -> WeightConversion:
        return find_conversion(read_json_object(model_folder(config) / CONFIG))

    def exports(self) -> dict[str, ExportFormat]:
        return {"hf": FOLDER, "adapter": peft_adapter.export_of(ADAPTER_LAYOUT)}

    def stored_dtype(self, dtype: DType, config: Configurable.Config | None = None) -> Callable[[str], torch.dtype]:
        """Returns a function from weight name to stored dtype.

        Args:
            dtype: Dtype of all weights except those that the transformers class keeps in float32.
            config: Config of the model; None: no weight is kept in float32.
        """
        import torch

        target: torch.dtype = getattr(torch, dtype)
        kept = [] if config is None else self.conversion(config).kept_exact
        return lambda name: torch.float32 if any(part in kept for part in name.split(".")) else target

    def exported_config(self, spec: ModelSpec) -> dict[str, Any]:
        """Returns the model config that an export records, as plain data.

        `model_name` is still the original backbone folder; `safetensors_path` is empty: the export has the weights.
        """
        model = to_dict(spec)
        model["config"]["policy"]["backbone"] |= {
            "model_name": lasting_name(model_config(spec.config).policy.backbone.model_name),
            "safetensors_path": "",
        }
        return model

    def quantizer(self, model: StoredModel, scheme: Scheme, group_size: int | None, method: Method) -> Quantizer:
        from worldsmith.families.vision_language.weights.quantization import ReasonerQuantizer

        return ReasonerQuantizer(model, scheme, group_size, method)

    def is_quantized(self, folder: Path) -> bool:
        return is_quantized(folder)

    def load_quantized(self, folder: Path, device: str | torch.device) -> Any:
        from worldsmith.families.vision_language.weights.quantization import load_quantized

        return load_quantized(folder, device)

    def pack_components(self, config: Configurable.Config, folder: Path, tree: Mapping[str, Any] | None = None) -> None:
        copy_companions(model_folder(config), folder)
        if tree is None:
            return
        media = section(section(section(tree, "dataloader_train"), "processor"), "media")
        name = str(section(section(section(section(tree, "model"), "config"), "policy"), "backbone").get("model_name"))
        kind = read_json_object(find_folder(name, field=FIELD) / CONFIG).get("model_type")
        write_media_limits(media, folder, str(kind))

    def card(self, name: str, about: Mapping[str, Any]) -> str:
        return (adapter_card if about["format"] == "adapter" else folder_card)(name, about)

    def assemble(self, path: str, out: str | Path, **options: Any) -> list[str]:
        from worldsmith.families.vision_language.weights.assemble import assemble

        return assemble(path, out, **options)


def model_folder(config: Configurable.Config) -> Path:
    return find_folder(model_config(config).policy.backbone.model_name, field=FIELD)


def model_config(config: Configurable.Config) -> VisionLanguageModel.Config:
    return cast(VisionLanguageModel.Config, config)
