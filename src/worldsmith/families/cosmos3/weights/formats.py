"""`Cosmos3Formats`: reads checkpoints of Cosmos3, and exports them to `diffusers.Cosmos3OmniPipeline`."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from worldsmith.checkpoint.formats import peft_adapter
from worldsmith.checkpoint.formats.export_folder import (
    ExportSource,
    count_elements,
    facts_of,
    may_write,
    new_export,
    origin_of,
    state_versions,
    weights_digest,
)
from worldsmith.checkpoint.formats.family_formats import DType, ExportFormat, ExportOptions, formats_of
from worldsmith.checkpoint.formats.peft_adapter import diffusers_header
from worldsmith.checkpoint.formats.stored_adapter import AdapterLayout
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.checkpoint.formats.weight_formats import Naming, NetworkDifference, read_network
from worldsmith.checkpoint.run.generation_defaults import clip_defaults, shift_of
from worldsmith.config import Configurable
from worldsmith.config.tree.plain import to_dict
from worldsmith.families.cosmos3.attention.modes import describe_modes
from worldsmith.families.cosmos3.model import Cosmos3Defaults, Cosmos3Generator, read_attention
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.text_tokenizer import FILES, find_tokenizer
from worldsmith.families.cosmos3.weights.diffusers_keys import (
    diffusers_to_native,
    native_to_diffusers,
    network_config_from_diffusers,
    transformer_config,
)
from worldsmith.families.cosmos3.weights.model_card import adapter_card, native_card, pipeline_card
from worldsmith.families.cosmos3.weights.network_settings import head_names, network_difference, network_of
from worldsmith.families.cosmos3.weights.tensor_names import (
    NATIVE_TYPE,
    TRANSFORMER_CLASS,
    find_naming,
    language_weights,
)
from worldsmith.families.diffusers_pipeline.sampling import make_unipc_scheduler
from worldsmith.files.json_file import read_json_object, section
from worldsmith.models.model_files import lasting_name
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.spec import ModelSpec
from worldsmith.models.video_model import GenerationDefaults

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from worldsmith.checkpoint.sources.weight_source import WeightSource

FAMILY, PIPELINE_INDEX = "cosmos3", "model_index.json"
TOKENIZER, VAE = "text_tokenizer", "vae"
KEPT_IN_FLOAT32 = "time_embedder."

EDGE_ACTIVATION = "relu2"
"""MLP activation that only Cosmos3-Edge has."""
ADAPTER_LAYOUT = AdapterLayout(FAMILY, native_to_diffusers, diffusers_to_native, "diffusers", diffusers_header)
"""LoRA adapters in PEFT's format for `diffusers.Cosmos3OmniTransformer`.

One file serves both libraries: PEFT reads the scale from `adapter_config.json`, diffusers' `load_lora_adapter` from the
header of `adapter_model.safetensors`, where it looks for it under the prefix of the tensor names.
"""


class Cosmos3Formats(peft_adapter.AdapterFormats):
    """Weight formats of Cosmos3.

    Reads diffusers folders, native exports (internal parameter names) and reasoners (language models in transformers'
    format). Exports diffusers pipelines, native exports, and LoRA adapters for PEFT.
    """

    reads = "a diffusers pipeline or transformer folder, or a Qwen3-VL or Cosmos3-Edge reasoner folder (safetensors)"
    tower = "language_model.visual."
    native_type = NATIVE_TYPE
    adapter_layout = ADAPTER_LAYOUT

    # Reading

    def find_naming(self, keys: Sequence[str], config: Mapping[str, Any]) -> Naming | None:
        return find_naming(keys, self)

    def settings_of(self, model_config: Mapping[str, Any]) -> dict[str, Any]:
        return read_network(section(model_config, "network"), NetworkConfig)

    def network_of_run(self, model: Mapping[str, Any]) -> ModelSpec:
        """Returns a model spec with the network settings of a run; all other settings have default values.

        Classes that are named in the run's config are not imported: an earlier version of the package may have had
        other classes.

        Args:
            model: Section `model` of the run's config, as plain data.
        """
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

    def set_component_folder(self, config: Configurable.Config, folder: Path) -> None:
        model = generator(config)
        if (folder / PIPELINE_INDEX).is_file():  # a native export has its tokenizer and names the VAE
            model.tokenizer.vae_path = str(folder / VAE)
        model.text_tokenizer.path = str(folder / TOKENIZER)

    def defaults_of_run(self, tree: Mapping[str, Any]) -> Cosmos3Defaults:
        return Cosmos3Defaults(shift=shift_of(tree), **clip_defaults(tree))

    def read_defaults(self, data: Mapping[str, Any]) -> Cosmos3Defaults:
        return Cosmos3Defaults(**data)

    def published_defaults(self, config: Configurable.Config, folder: Path) -> Cosmos3Defaults:
        """Returns the released defaults: resolution bucket 480 and 121 frames for Edge, else 720 and 189 frames."""
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
        return make_transformer(generator(config))

    def exports(self) -> dict[str, ExportFormat]:
        from worldsmith.checkpoint.formats.export_weights import NATIVE

        return {"diffusers": DIFFUSERS, "native": NATIVE, "adapter": peft_adapter.export_of(ADAPTER_LAYOUT)}

    def stored_dtype(self, dtype: DType, config: Configurable.Config | None = None) -> Callable[[str], torch.dtype]:
        """Returns a function from weight name to stored dtype: `dtype`, but float32 for the time embedder."""
        import torch

        target: torch.dtype = getattr(torch, dtype)
        return lambda name: torch.float32 if name.startswith(KEPT_IN_FLOAT32) else target

    def exported_config(self, spec: ModelSpec) -> dict[str, Any]:
        """Returns the model config that an export stores, as plain data.

        The VAE is named by hub name or absolute path, the tokenizer is the copy in the export.
        """
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


def generator(config: Configurable.Config) -> Cosmos3Generator.Config:
    return cast(Cosmos3Generator.Config, config)


def export_stored_generator(model: StoredModel, out: Path, options: ExportOptions) -> bool:
    """Loads a stored model and writes it as a diffusers pipeline to the folder `out`.

    Args:
        model: The stored model.
        out: Folder to create.
        options: Dtype of the export, and whether an older export is replaced.

    Returns:
        False if `out` already contains the same export.
    """
    check_stored(model)
    model.require_effect()
    origin = origin_of(model, merge=True)
    generator = model.load(full_precision=True)
    return export_pipeline(
        generator, out, source=origin, card=facts_of(model), dtype=options.dtype, force=options.force
    )


def check_stored(model: StoredModel) -> None:
    """Raises ValueError if no diffusers pipeline can represent the stored model."""
    require_exportable(model.config, model.defaults)


def stored_weights(model: StoredModel, options: ExportOptions) -> dict[str, Tensor]:
    """Returns the weights of a stored model on the CPU, by diffusers name, in the dtypes that an export would have.

    Of `options`, only `dtype` is used.
    """
    return exported_weights(model.load(full_precision=True), options.dtype)


DIFFUSERS = ExportFormat(
    "export",
    PIPELINE_INDEX,
    "pipeline",
    export_stored_generator,
    stored_weights,
    check_stored,
    of_library=True,
    has_schedule=True,
)


def export_pipeline(
    generator: Cosmos3Generator,
    out: str | Path,
    *,
    source: ExportSource | None = None,
    card: Mapping[str, Any] | None = None,
    dtype: DType = "bfloat16",
    force: bool = False,
    max_shard_size: str | int = "10GB",
) -> bool:
    """Writes a diffusers pipeline folder; it is renamed to `out` when it is complete.

    The pipeline samples with the schedule of `generator.defaults.shift`.

    Args:
        generator: The model.
        out: Folder to create.
        source: Origin of the weights, for worldsmith.json.
        card: Facts for the model card, stored as section `card` of worldsmith.json, such as "data", the path of the
            training data; None: only the number of parameters.
        dtype: Dtype of the weights.
        force: Whether another or a damaged export in `out` is replaced; other files in `out` are never replaced.
        max_shard_size: Max size of a weight file, such as "10GB".

    Returns:
        False if `out` already contains the same export.

    Raises:
        ValueError: If the shift is not known, or diffusers does not support the attention.
        FileExistsError: If `out` contains other files, or another or a damaged export and `force` is False.
    """
    out = Path(out)
    require_exportable(generator.config, generator.defaults)
    weights = exported_weights(generator, dtype)
    about = describe_export(generator, source or ExportSource(), dtype, weights)
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    about["card"] = {"parameters": count_elements(shapes), **(card or {})}
    if not may_write(out, about, force, index=PIPELINE_INDEX):
        return False
    with new_export(out, about, pipeline_card, force=force) as aside:
        build_pipeline(generator, weights, dtype).save_pretrained(aside, max_shard_size=max_shard_size)
    return True


def require_exportable(config: Cosmos3Generator.Config, defaults: GenerationDefaults) -> None:
    """Raises ValueError if no diffusers pipeline can represent a model with this config; needs no weights.

    Args:
        config: Config of the model.
        defaults: Generation defaults; the pipeline needs their shift.
    """
    attention = read_attention(config)
    if not attention.is_dense:
        raise ValueError(
            f"diffusers only has dense attention, but this model uses {describe_modes(attention)}: its outputs "
            "would differ; use --format native"
        )
    if defaults.shift is None:
        raise ValueError(
            "an exported pipeline needs one shift for its noise schedule, but the run's config does not define one; "
            "set it with --shift"
        )
    if not (defaults.shift > 0 and math.isfinite(defaults.shift)):
        raise ValueError(f"the noise schedule of an exported pipeline needs a positive shift, found {defaults.shift}")


def exported_weights(generator: Cosmos3Generator, dtype: DType) -> dict[str, Tensor]:
    """Returns the network's weights by diffusers name on the CPU, in `dtype`; those of the time embedder in float32."""
    dtype_of = formats_of(FAMILY).stored_dtype(dtype)
    return {
        native_to_diffusers(name): parameter.detach().cpu().to(dtype_of(name))
        for name, parameter in native_parameters(generator.network).items()
    }


def build_pipeline(generator: Cosmos3Generator, weights: dict[str, Tensor], dtype: DType) -> Any:
    """Builds the diffusers pipeline object on the CPU.

    The pipeline samples with the noise levels of `Cosmos3Sampler` and adds no system prompt to prompts.

    Args:
        generator: The model, whose VAE, tokenizer and generation defaults are used.
        weights: Weights of the network by diffusers name.
        dtype: Dtype of the VAE.
    """
    import diffusers

    shift = generator.defaults.shift
    assert shift is not None, "refused before"

    library: Any = diffusers  # its classes carry no types
    transformer = make_transformer(generator.config)
    transformer.load_state_dict(weights, assign=True)
    return library.Cosmos3OmniPipeline(
        transformer=transformer,
        text_tokenizer=generator.text_tokenizer.tokenizer,
        vae=replace(generator.config.tokenizer, precision=dtype).build(device="cpu").model,
        scheduler=make_unipc_scheduler(shift),
        enable_safety_checker=False,
        default_use_system_prompt=False,
        use_native_flow_schedule=True,
    )


def make_transformer(config: Cosmos3Generator.Config) -> Any:
    """Builds the diffusers network for a model config on the meta device, without weights."""
    import diffusers
    import torch

    library: Any = diffusers
    with torch.device("meta"):
        return library.Cosmos3OmniTransformer(**transformer_config(config.network))


def describe_export(
    generator: Cosmos3Generator, source: ExportSource, dtype: DType, weights: dict[str, Tensor]
) -> dict[str, Any]:
    """Returns the content of worldsmith.json for an export, without the list of files.

    Args:
        generator: The exported model.
        source: Origin of the weights.
        dtype: Dtype of the export.
        weights: Exported weights; only their digest is recorded.
    """
    model = to_dict(ModelSpec(name=FAMILY, config=generator.config))
    model["config"]["tokenizer"]["vae_path"] = "vae"
    model["config"]["text_tokenizer"]["path"] = "text_tokenizer"
    return {
        **state_versions("diffusers", "torch", "diffusers", "transformers"),
        "source": source.as_data(),
        "dtype": dtype,
        "weights_sha256": weights_digest(weights),
        "vae": generator.latent_fingerprint,
        "generation": asdict(generator.defaults),
        "model": model,
    }
