"""Reads diffusers weights, and exports a model as a folder that its diffusers pipeline loads."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from worldsmith.checkpoint.formats import lora_file, peft_adapter
from worldsmith.checkpoint.formats.export_folder import (
    count_elements,
    facts_of,
    may_write,
    new_export,
    origin_of,
    state_versions,
    weights_digest,
)
from worldsmith.checkpoint.formats.family_formats import DType, ExportFormat, ExportOptions
from worldsmith.checkpoint.formats.lora_names import LoraNames
from worldsmith.checkpoint.formats.peft_adapter import diffusers_header
from worldsmith.checkpoint.formats.stored_adapter import AdapterLayout
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.checkpoint.formats.weight_formats import Naming, NetworkDifference, read_network
from worldsmith.config import Configurable
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.families.diffusers_pipeline.model import PipelineModel
from worldsmith.files.json_file import read_json_object, section
from worldsmith.models.model_files import lasting_name
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from worldsmith.checkpoint.sources.weight_source import WeightSource

PIPELINE_INDEX = "model_index.json"


class PipelineFormats(peft_adapter.AdapterFormats):
    """Base class of weight formats for families whose parameters have diffusers' names in files and in memory."""

    model: ClassVar[type[PipelineModel]]
    marks: ClassVar[Sequence[str]]
    """Tensor names that identify networks of this family."""
    meanings: ClassVar[Sequence[str]] = ()
    """Network settings that change the output of the same weights although shapes may match."""
    lora_names: ClassVar[LoraNames] = LoraNames()
    """Names of the network's layers in LoRA files of other programs, which includes all layers that can be adapted."""
    choices: ClassVar[Sequence[str]] = ()
    """Network settings that may differ from those of the loaded weights, with a warning."""

    def __init__(self, family: str) -> None:
        super().__init__(family)
        self.reads = f"a diffusers folder with a {self.model.network_class}, or its pipeline (safetensors)"
        self.network_config: Any = type(self.new_config().network)
        self.adapter_layout = AdapterLayout(
            family, str, str, "diffusers", diffusers_header, "transformer", self.lora_names
        )

    @abstractmethod
    def pipeline_class(self, config: Any) -> str:
        """Returns the name of the diffusers pipeline class for a model with this config."""

    def scheduler(self, model: Any) -> Any:
        """Returns the diffusers scheduler of an exported pipeline."""
        return model.defaults.make_scheduler(model.defaults.shift)

    def arrange(self, model: Any, parts: dict[str, Any], dtype: DType) -> dict[str, Any]:
        """Returns the constructor arguments of the pipeline class, except the scheduler; by default `parts`.

        Args:
            model: The model.
            parts: Components by name: transformer, vae, text_encoder, tokenizer.
            dtype: Dtype of the export.
        """
        return parts

    def check_exportable(self, config: Any) -> None:
        """Raises ValueError if no diffusers pipeline can represent a model with this config; needs no weights."""

    def new_config(self) -> Any:
        return self.model.Config()

    # Reading

    def find_naming(self, keys: Sequence[str], config: Mapping[str, Any]) -> Naming | None:
        if set(self.marks) <= set(keys):
            return Naming(self.family, "diffusers transformer", {key: key for key in keys}, self.stated)
        native = super().find_naming(keys, config)
        return native if native is not None and set(self.marks) <= native.keys.keys() else None

    def settings_of(self, model_config: Mapping[str, Any]) -> dict[str, Any]:
        return self.stated(section(model_config, "network"))

    def stated(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings of a file that are fields of the network config, converted to the types of the fields.

        Args:
            settings: Network settings from the file, by name; names that are not fields are ignored.

        Raises:
            ValueError: If a value has the wrong type.
        """
        known = {field.name for field in fields(self.network_config)}
        return read_network({name: value for name, value in settings.items() if name in known}, self.network_config)

    def difference(self, settings: Mapping[str, Any], config: Any) -> NetworkDifference:
        found = {
            name: f"{name} is {value!r} in the weights and {getattr(config.network, name)!r} in the config"
            for name, value in settings.items()
            if value != getattr(config.network, name)
        }
        return NetworkDifference(
            [words for name, words in found.items() if name in self.meanings],
            [words for name, words in found.items() if name not in (*self.meanings, *self.choices)],
            [words for name, words in found.items() if name in self.choices],
        )

    def model_of(self, source: WeightSource, heads: Sequence[str] = ()) -> ModelSpec:
        if not source.settings:
            raise UserError(
                f"{source.describe}: the network config is missing: expected config.json next to the weights. Copy it "
                "there"
            )
        return self.spec_of(source.settings)

    def read_pipeline(self, folder: Path) -> ModelSpec | None:
        file = folder / "transformer" / "config.json"
        if not (folder / PIPELINE_INDEX).is_file() or not file.is_file():
            return None
        transformer = read_json_object(file)
        is_own = transformer.get("_class_name") == self.model.network_class
        return self.spec_of(self.stated(transformer)) if is_own else None

    def spec_of(self, settings: Mapping[str, Any]) -> ModelSpec:
        """Returns a model spec with these network settings (by field name); other fields have their defaults."""
        config = self.new_config()
        config.network = self.network_config(**settings)
        return ModelSpec(name=self.family, config=config)

    def set_component_folder(self, config: Any, folder: Path) -> None:
        if (folder / PIPELINE_INDEX).is_file():  # a native export names them
            for path in self.model.components:
                set_field(config, path, str(folder))

    def finish(self, model: Any, folder: Path) -> None:
        """Writes files into the exported `folder` that `save_pretrained` of diffusers does not write; default: none."""

    def read_defaults(self, data: Mapping[str, Any]) -> Any:
        return self.model.defaults_class(**data)

    # Exporting

    def library_network(self, config: Any) -> nn.Module:
        import torch

        with torch.device("meta"):
            network: nn.Module = self.model.library_class()(**asdict(config.network))
        return network

    def exports(self) -> dict[str, ExportFormat]:
        from worldsmith.checkpoint.formats.export_weights import NATIVE

        formats = {"diffusers": DIFFUSERS, "native": NATIVE, "adapter": peft_adapter.export_of(self.adapter_layout)}
        if not self.lora_names.original:
            return formats
        return {**formats, "comfyui": lora_file.comfyui_export_of(self.adapter_layout, self.lora_suffix)}

    def lora_suffix(self, config: Any) -> str:
        """Returns the end of the name of a LoRA file, such as the trained one of several networks; by default ""."""
        return ""

    def stored_dtype(self, dtype: DType, config: Configurable.Config | None = None) -> Callable[[str], torch.dtype]:
        """Returns a function from the name of a weight to its dtype in an export.

        This is `dtype`, but float32 for weights that the network's class keeps in float32.

        Args:
            dtype: Dtype of the export.
            config: Not used.
        """
        import torch

        target, kept = getattr(torch, dtype), set(self.model.library_class()._keep_in_fp32_modules or ())
        return lambda name: torch.float32 if kept & set(name.split(".")) else target

    def foreign_keys(self, format: str) -> tuple[str, Callable[[str], str]]:
        return ("diffusion_pytorch_model", str) if format == "diffusers" else super().foreign_keys(format)

    def foreign_config(self, format: str, spec: ModelSpec) -> dict[str, Any]:
        network: Any = spec.config
        return {"_class_name": self.model.network_class, **asdict(network.network)}

    def adapts(self, layers: Sequence[str]) -> bool:
        if self.lora_names.original:
            return all(map(self.lora_names.find_layer, layers))
        config = self.new_config()
        names: Any = config.adaptable_layers()
        if names is None:
            names = (name for name, _ in config.build(device="meta").network.named_modules())
        known = set(map(without_numbers, names))
        return {without_numbers(layer) for layer in layers} <= known

    def component_names(self, config: Any) -> dict[str, str]:
        """Returns the hub name or absolute path of each component except the network, by config field, if set."""
        places = {path: attrgetter(path)(config) for path in self.model.components}
        return {path: lasting_name(place) for path, place in places.items() if place}

    def exported_config(self, spec: ModelSpec) -> dict[str, Any]:
        config = copy.deepcopy(spec.config)
        for path, place in self.component_names(config).items():
            set_field(config, path, place)
        return to_dict(replace(spec, config=config))

    def left_out(self, format: str, config: Configurable.Config) -> list[str]:
        places = dict.fromkeys(self.component_names(config).values())
        return (
            [f"VAE and text encoder are not copied, but loaded from {', '.join(places)}"] if format == "native" else []
        )

    def card(self, name: str, about: Mapping[str, Any]) -> str:
        if about["format"] == "native":
            return super().card(name, about)
        if about["format"] == "adapter":
            return (
                f"# {name}\n\nLoRA adapters (rank {about['rank']}, alpha {about['alpha']}) of a "
                f"{self.model.network_class}, trained on "
                f"{about['base_model'] or 'the initial weights of the run'}. PEFT loads `adapter_model.safetensors`, "
                "diffusers loads `pytorch_lora_weights.safetensors`, which also contains alpha:"
                f'\n\n```python\npipeline.load_lora_weights("{name}")\n```\n'
            )
        return (
            f"# {name}\n\nA {about['pipeline']} in {about['dtype']}, exported by Worldsmith {about['worldsmith']}: "
            f"`diffusers.{about['pipeline']}.from_pretrained` loads this folder. To train from it: "
            "`checkpoint.load_path` = this folder.\n"
        )


def without_numbers(path: str) -> str:
    """Replaces the block numbers of a module path by `N`: "blocks.3.attn1.to_q" becomes "blocks.N.attn1.to_q"."""
    return ".".join("N" if part.isdecimal() else part for part in path.split("."))


def set_field(config: Any, path: str, value: str) -> None:
    """Sets the field of a config at a dotted path, such as "tokenizer.vae_path", to `value`, in place."""
    *sections, name = path.split(".")
    setattr(attrgetter(".".join(sections))(config) if sections else config, name, value)


def export_stored_pipeline(model: StoredModel, out: Path, options: ExportOptions) -> bool:
    """Writes a trained model as a diffusers pipeline folder.

    Args:
        model: The trained model.
        out: Folder to create.
        options: Dtype of the export, and whether an older export is replaced.

    Returns:
        False if `out` already contains the same export.

    Raises:
        ValueError: If no diffusers pipeline can represent the model.
    """
    formats = cast(PipelineFormats, model.formats)
    check_stored(model)
    model.require_effect()
    generator = model.load(full_precision=True)
    weights = exported_weights(formats, generator, options.dtype)
    about = {
        **state_versions("diffusers", "torch", "diffusers", "transformers"),
        "pipeline": formats.pipeline_class(model.config),
        "source": origin_of(model, merge=True).as_data(),
        "dtype": options.dtype,
        "weights_sha256": weights_digest(weights),
        "vae": generator.latent_fingerprint,
        "generation": asdict(generator.defaults),
        "model": describe_model(formats, model),
        "card": {"parameters": count_elements({name: w.shape for name, w in weights.items()}), **facts_of(model)},
    }
    if not may_write(out, about, options.force, index=PIPELINE_INDEX):
        return False
    with new_export(out, about, formats.card, force=options.force) as aside:
        build_pipeline(formats, generator, weights, options.dtype).save_pretrained(aside)
        formats.finish(generator, aside)
    return True


def check_stored(model: StoredModel) -> None:
    """Raises ValueError if no diffusers pipeline can represent the stored model."""
    cast(PipelineFormats, model.formats).check_exportable(model.config)


def stored_weights(model: StoredModel, options: ExportOptions) -> dict[str, Tensor]:
    """Returns the weights of a stored model by diffusers name, on the CPU, in the dtypes of an export."""
    return exported_weights(cast(PipelineFormats, model.formats), model.load(full_precision=True), options.dtype)


def exported_weights(formats: PipelineFormats, generator: Any, dtype: DType) -> dict[str, Tensor]:
    """Returns the network's weights by diffusers name in the dtypes of an export, on the CPU.

    Args:
        formats: Weight formats of the family.
        generator: The model.
        dtype: Dtype of the export.
    """
    dtype_of = formats.stored_dtype(dtype, generator.config)
    return {name: p.detach().cpu().to(dtype_of(name)) for name, p in native_parameters(generator.network).items()}


DIFFUSERS = ExportFormat(
    "export", PIPELINE_INDEX, "pipeline", export_stored_pipeline, stored_weights, check_stored, of_library=True
)


def describe_model(formats: PipelineFormats, model: StoredModel) -> dict[str, Any]:
    """Returns the model spec for an exported pipeline, as plain data; component paths are ".", the export itself."""
    config = copy.deepcopy(model.merged_spec.config)
    for path in formats.component_names(config):
        set_field(config, path, ".")
    return to_dict(replace(model.merged_spec, config=config))


def build_pipeline(formats: PipelineFormats, generator: Any, weights: dict[str, Tensor], dtype: DType) -> Any:
    """Builds the diffusers pipeline object on the CPU.

    Args:
        formats: Weight formats of the family.
        generator: The model, whose config names the VAE and the text encoder.
        weights: Weights of the network.
        dtype: Dtype of the VAE and the text encoder.
    """
    import diffusers

    config = generator.config
    transformer = formats.library_network(config)
    # Buffers in the state dict, such as position tables, are not in `weights` and are copied from the model.
    transformer.load_state_dict({**generator.network.state_dict(), **weights}, assign=True)
    text = replace(config.text_encoder, precision=dtype).build()
    text.load("cpu")
    vae = replace(config.tokenizer, precision=dtype).build(device="cpu").library_model
    parts = {"transformer": transformer, "vae": vae, **text.parts}
    scheduler, pipeline = formats.scheduler(generator), getattr(diffusers, formats.pipeline_class(config))
    return pipeline(**formats.arrange(generator, parts, dtype), scheduler=scheduler)
