"""`Cosmos3Formats`: all that `checkpoint/` asks of this family."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from worldsmith.checkpoint.formats import peft_adapter
from worldsmith.checkpoint.formats.family_formats import DType, ExportFormat, FamilyFormats
from worldsmith.checkpoint.formats.peft_adapter import diffusers_header
from worldsmith.checkpoint.formats.stored_adapter import AdapterLayout
from worldsmith.checkpoint.formats.weight_formats import Naming, NetworkDifference
from worldsmith.checkpoint.run.clip_defaults import clip_defaults, shift_of
from worldsmith.config import Configurable
from worldsmith.config.tree.plain import to_dict
from worldsmith.families.cosmos3.model import Cosmos3Defaults, Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.text_tokenizer import FILES, find_tokenizer
from worldsmith.families.cosmos3.weights.diffusers_keys import (
    diffusers_to_native,
    native_to_diffusers,
    network_config_from_diffusers,
    transformer_config,
)
from worldsmith.families.cosmos3.weights.model_card import adapter_card, native_card, pipeline_card
from worldsmith.families.cosmos3.weights.network_settings import head_names, network_difference, network_of, stated
from worldsmith.families.cosmos3.weights.tensor_names import (
    NATIVE_TYPE,
    TRANSFORMER_CLASS,
    find_naming,
    language_weights,
)
from worldsmith.files.json_file import read_json_object, section
from worldsmith.models.model_files import lasting_name
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import nn

    from worldsmith.checkpoint.formats.stored_adapter import StoredAdapter
    from worldsmith.checkpoint.sources.weight_source import WeightSource

PIPELINE_INDEX = "model_index.json"
TOKENIZER, VAE = "text_tokenizer", "vae"
KEPT_IN_FLOAT32 = "time_embedder."

EDGE_ACTIVATION = "relu2"
"""Activation that only the Edge tier has."""
ADAPTER_LAYOUT = AdapterLayout("cosmos3", native_to_diffusers, diffusers_to_native, "diffusers", diffusers_header)
"""LoRA adapters in PEFT's format for `diffusers.Cosmos3OmniTransformer`.

One file serves both libraries: PEFT reads the scale from `adapter_config.json`, diffusers' `load_lora_adapter` from the
header of `adapter_model.safetensors`, where it looks for it under the prefix of the tensor names.
"""


class Cosmos3Formats(FamilyFormats):
    reads = "a diffusers pipeline or transformer folder, or a Qwen3-VL or Edge reasoner folder (safetensors)"
    tower = "language_model.visual."
    native_type = NATIVE_TYPE

    # Reading

    def find_naming(self, keys: Sequence[str], config: Mapping[str, Any]) -> Naming | None:
        return find_naming(keys, self)

    def settings_of(self, model_config: Mapping[str, Any]) -> dict[str, Any]:
        return stated(section(model_config, "network"))

    def network_of_run(self, model: Mapping[str, Any]) -> ModelSpec:
        """Needs no class of the config, which another version may have had elsewhere."""
        network = NetworkConfig(**self.settings_of(section(model, "config")))
        return ModelSpec(name=self.family, config=Cosmos3Generator.Config(network=network))

    def difference(self, settings: Mapping[str, Any], config: Configurable.Config) -> NetworkDifference:
        return network_difference(settings, generator(config).network)

    def model_of(self, source: WeightSource, heads: Sequence[str] = ()) -> ModelSpec:
        return ModelSpec(name=self.family, config=Cosmos3Generator.Config(network=network_of(source, heads)))

    def head_names(self, source: WeightSource, heads: Sequence[str]) -> list[str]:
        return head_names(source, heads)

    def read_pipeline(self, folder: Path) -> ModelSpec | None:
        config_file = folder / "transformer" / "config.json"
        if not (folder / PIPELINE_INDEX).is_file() or not config_file.is_file():
            return None
        transformer = read_json_object(config_file)
        if transformer.get("_class_name", TRANSFORMER_CLASS) != TRANSFORMER_CLASS:
            return None
        config = Cosmos3Generator.Config(network=network_config_from_diffusers(transformer))
        return ModelSpec(name=self.family, config=config)

    def place_components(self, config: Configurable.Config, folder: Path) -> None:
        model = generator(config)
        if (folder / PIPELINE_INDEX).is_file():  # a native export has its tokenizer and names the VAE
            model.tokenizer.vae_path = str(folder / VAE)
        model.text_tokenizer.path = str(folder / TOKENIZER)

    def defaults_of_run(self, tree: Mapping[str, Any]) -> Cosmos3Defaults:
        return Cosmos3Defaults(shift=shift_of(tree), **clip_defaults(tree))

    def read_defaults(self, data: Mapping[str, Any]) -> Cosmos3Defaults:
        return Cosmos3Defaults(**data)

    def published_defaults(self, config: Configurable.Config, folder: Path) -> Cosmos3Defaults:
        """Those of the published sampling: the tier 480 and 121 frames for Edge, 720 and 189 frames for the others."""
        edge = generator(config).network.hidden_act == EDGE_ACTIVATION
        height, width, num_frames = (480, 832, 121) if edge else (720, 1280, 189)
        return Cosmos3Defaults(
            height=height,
            width=width,
            num_frames=num_frames,
            fps=24.0,
            shift=10.0,
            append_duration_fps=True,
            append_resolution=True,
            structured_metadata=True,
            image_shift=3.0,
        )

    # Exporting

    def library_network(self, config: Configurable.Config) -> nn.Module:
        from worldsmith.families.cosmos3.weights.export_diffusers import make_transformer

        network: nn.Module = make_transformer(generator(config))
        return network

    def exports(self) -> dict[str, ExportFormat]:
        from worldsmith.checkpoint.formats.export_weights import NATIVE
        from worldsmith.families.cosmos3.weights.export_diffusers import DIFFUSERS

        return {"diffusers": DIFFUSERS, "native": NATIVE, "adapter": peft_adapter.export_of(ADAPTER_LAYOUT)}

    def stored_dtype(self, dtype: DType, config: Configurable.Config | None = None) -> Callable[[str], torch.dtype]:
        """All weights in `dtype` but the time embedder's, which every reader of such networks keeps in float32."""
        import torch

        target: torch.dtype = getattr(torch, dtype)
        return lambda name: torch.float32 if name.startswith(KEPT_IN_FLOAT32) else target

    def exported_config(self, spec: ModelSpec) -> dict[str, Any]:
        """The VAE is named by its hub name or its absolute path, the tokenizer is the copy beside the weights."""
        model = to_dict(spec)
        model["config"]["text_tokenizer"]["path"] = TOKENIZER
        model["config"]["tokenizer"]["vae_path"] = lasting_name(generator(spec.config).tokenizer.vae_path)
        return model

    def pack_components(self, config: Configurable.Config, folder: Path, tree: Mapping[str, Any] | None = None) -> None:
        path = generator(config).text_tokenizer.path
        source, target = find_tokenizer(path), folder / TOKENIZER
        target.mkdir()
        for pattern in FILES:
            for file in source.glob(pattern):
                if file.is_file():
                    shutil.copyfile(file, target / file.name)

    def left_out(self, format: str, config: Configurable.Config) -> list[str]:
        vae = lasting_name(generator(config).tokenizer.vae_path)
        return [f"the VAE is not copied: {vae}"] if format == "native" else []

    def card(self, name: str, about: Mapping[str, Any]) -> str:
        cards = {"diffusers": pipeline_card, "native": native_card, "adapter": adapter_card}
        return cards[about["format"]](name, about)

    def language_weights(self, source: WeightSource, config: Mapping[str, Any]) -> dict[str, str]:
        return language_weights(source, config)

    def foreign_keys(self, format: str) -> tuple[str, Callable[[str], str]]:
        return "diffusion_pytorch_model", native_to_diffusers

    def foreign_config(self, format: str, spec: ModelSpec) -> dict[str, Any]:
        return {"_class_name": TRANSFORMER_CLASS, **transformer_config(generator(spec.config).network)}

    def read_adapter(self, folder: Path) -> StoredAdapter:
        return peft_adapter.read_adapter(ADAPTER_LAYOUT, folder)

    def load_adapter(self, network: nn.Module, folder: Path) -> list[str]:
        return peft_adapter.load_adapter(ADAPTER_LAYOUT, network, folder)


def generator(config: Configurable.Config) -> Cosmos3Generator.Config:
    return cast(Cosmos3Generator.Config, config)
