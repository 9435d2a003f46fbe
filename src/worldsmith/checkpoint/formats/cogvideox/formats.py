"""`CogVideoXFormats`: all that `checkpoint/` asks of this family. Weights have diffusers' names everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from worldsmith.checkpoint.formats.family_formats import Export, FamilyFormats, Naming, NetworkDifference
from worldsmith.config import Configurable
from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.tree.plain import TAG, to_dict
from worldsmith.config.tree.reader import from_dict
from worldsmith.files.json_file import read_json_object, section
from worldsmith.models.cogvideox.architecture import NetworkConfig
from worldsmith.models.cogvideox.generator import CogVideoXGenerator
from worldsmith.models.cogvideox.noise_table import NoiseTable
from worldsmith.models.model_files import lasting_name
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    from torch import nn

    from worldsmith.checkpoint.formats.stored_adapter import StoredAdapter
    from worldsmith.checkpoint.sources.weight_source import WeightSource

PIPELINE_INDEX, CLASS_NAME = "model_index.json", "CogVideoXTransformer3DModel"
TABLE = "patch_embed.pos_embedding"
MARKS = ("patch_embed.text_proj.weight", "transformer_blocks.0.norm1.linear.weight", "norm_out.linear.weight")
"""What every such network has, and no other that is read here."""
CHOICES = ("sample_width", "sample_height", "sample_frames", "max_text_seq_length")
"""What a fine-tuned run may choose, but should know."""
MEANINGS = ("num_attention_heads", "attention_head_dim", "patch_size", "patch_size_t",
            "use_rotary_positional_embeddings", "spatial_interpolation_scale", "temporal_interpolation_scale",
            "norm_eps")  # fmt: skip
"""With other values the same weights compute something else, though every shape may fit."""
FIELDS = [field.name for field in fields(NetworkConfig)]


class CogVideoXFormats(FamilyFormats):
    reads = "a diffusers CogVideoX pipeline or transformer folder (safetensors)"

    # Reading

    def find_naming(self, keys: Sequence[str], config: Mapping[str, Any]) -> Naming | None:
        if set(MARKS) <= set(keys):
            own = {key: key for key in keys if key != TABLE}
            return Naming(self.family, "diffusers transformer", own, stated)
        native = super().find_naming(keys, config)
        return native if native is not None and set(MARKS) <= native.keys.keys() else None

    def settings_of(self, model_config: Mapping[str, Any]) -> dict[str, Any]:
        return stated(section(model_config, "network"))

    def difference(self, settings: Mapping[str, Any], config: Configurable.Config) -> NetworkDifference:
        network = generator(config).network
        found = {
            name: f"{name} is {value!r} there and {getattr(network, name)!r} here"
            for name, value in settings.items()
            if value != getattr(network, name)
        }
        return NetworkDifference(
            [words for name, words in found.items() if name in MEANINGS],
            [words for name, words in found.items() if name not in (*MEANINGS, *CHOICES)],
            [words for name, words in found.items() if name in CHOICES],
        )

    def model_of(self, source: WeightSource, heads: Sequence[str] = ()) -> ModelSpec:
        if not source.settings:
            raise UserError(f"{source.describe}: nothing says what its network is; its config.json belongs beside it")
        return self.spec_of(source.settings)

    def read_pipeline(self, folder: Path) -> ModelSpec | None:
        file = folder / "transformer" / "config.json"
        if not (folder / PIPELINE_INDEX).is_file() or not file.is_file():
            return None
        transformer = read_json_object(file)
        return self.spec_of(stated(transformer)) if transformer.get("_class_name") == CLASS_NAME else None

    def spec_of(self, settings: Mapping[str, Any]) -> ModelSpec:
        config = CogVideoXGenerator.Config(network=NetworkConfig(**settings))
        config.text_encoder.max_length = config.network.max_text_seq_length
        return ModelSpec(name=self.family, config=config)

    def place_components(self, config: Configurable.Config, folder: Path) -> None:
        if (folder / PIPELINE_INDEX).is_file():  # a native export names them
            model = generator(config)
            model.tokenizer.vae_path = model.text_encoder.path = str(folder)

    def defaults_of_run(self, tree: Mapping[str, Any]) -> NoiseTable:
        return self.read_defaults({field.name: tree["objective"][field.name] for field in fields(NoiseTable)})

    def read_defaults(self, data: Mapping[str, Any]) -> NoiseTable:
        return NoiseTable(**data)

    def published_defaults(self, config: Configurable.Config) -> NoiseTable:
        rotary = generator(config).network.use_rotary_positional_embeddings
        return NoiseTable(shift_scale=1.0 if rotary else 3.0)

    # Exporting

    def exports(self) -> dict[str, Export]:
        from worldsmith.checkpoint.formats.cogvideox.export_diffusers import DIFFUSERS
        from worldsmith.checkpoint.formats.cogvideox.peft_adapter import ADAPTER

        return {"diffusers": DIFFUSERS, **super().exports(), "adapter": ADAPTER}

    def read_adapter(self, folder: Path) -> StoredAdapter:
        from worldsmith.checkpoint.formats.cogvideox.peft_adapter import read_adapter

        return read_adapter(folder)

    def load_adapter(self, network: nn.Module, folder: Path) -> list[str]:
        from worldsmith.checkpoint.formats.cogvideox.peft_adapter import load_adapter

        return load_adapter(network, folder)

    def exported_config(self, spec: ModelSpec) -> dict[str, Any]:
        """VAE and text encoder are named by their hub names or absolute paths."""
        model, config = to_dict(spec), generator(spec.config)
        model["config"]["tokenizer"]["vae_path"] = lasting_name(config.tokenizer.vae_path)
        model["config"]["text_encoder"]["path"] = lasting_name(config.text_encoder.path)
        return model

    def left_out(self, format: str, config: Configurable.Config) -> list[str]:
        if format != "native":
            return []
        model = generator(config)
        places = dict.fromkeys(map(lasting_name, (model.tokenizer.vae_path, model.text_encoder.path)))
        return [f"VAE and text encoder are not copied: {', '.join(places)}"]

    def card(self, name: str, about: Mapping[str, Any]) -> str:
        if about["format"] == "native":
            return super().card(name, about)
        if about["format"] == "adapter":
            return (
                f"# {name}\n\nLow-rank adapters (rank {about['rank']}, alpha {about['alpha']}) of a CogVideoX "
                f"transformer, which belong to {about['base_model'] or 'the weights that the run started from'}. "
                "PEFT loads them, or diffusers:\n\n```python\npipeline.transformer.load_lora_adapter(\n"
                f'    "{name}", prefix="base_model.model", weight_name="adapter_model.safetensors"\n)\n```\n'
            )
        return (
            f"# {name}\n\nA CogVideoX pipeline in {about['dtype']}, exported by Worldsmith {about['worldsmith']}: "
            "`diffusers.CogVideoXPipeline.from_pretrained` loads this folder. To train from it: "
            "`checkpoint.load_path` = this folder.\n"
        )


def stated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The network fields that a file states. Raises ValueError for a value of another type."""
    given = {name: value for name, value in settings.items() if name in FIELDS and name != TAG}
    try:
        network = from_dict(given, NetworkConfig)
    except ConfigError as error:
        raise ValueError("; ".join(problem.render() for problem in error.problems)) from error
    return {name: getattr(network, name) for name in given}


def generator(config: Configurable.Config) -> CogVideoXGenerator.Config:
    return cast(CogVideoXGenerator.Config, config)
