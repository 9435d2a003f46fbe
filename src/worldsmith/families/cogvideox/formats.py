"""`CogVideoXFormats`: all that `checkpoint/` asks of this family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.family_formats import DType, ExportFormat
from worldsmith.checkpoint.run.clip_defaults import clip_defaults
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import TAG
from worldsmith.families.cogvideox.architecture import ImageConfig
from worldsmith.families.cogvideox.model import SCHEDULERS, CogVideoXDefaults, CogVideoXGenerator
from worldsmith.families.diffusers_pipeline.formats import PipelineFormats
from worldsmith.files.json_file import read_json_object
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch

    from worldsmith.checkpoint.sources.weight_source import WeightSource

TABLE = ("num_timesteps", "beta_start", "beta_end", "shift_scale", "zero_terminal_snr")
"""Fields of the objective that say how noisy each row of the table is."""
IN_SCHEDULERS = {
    "num_timesteps": "num_train_timesteps",
    "beta_start": "beta_start",
    "beta_end": "beta_end",
    "shift_scale": "snr_shift_scale",
    "zero_terminal_snr": "rescale_betas_zero_snr",
    "timestep_spacing": "timestep_spacing",
}
"""The same, as a scheduler of diffusers names them."""


class CogVideoXFormats(PipelineFormats):
    model = CogVideoXGenerator
    marks = ("patch_embed.text_proj.weight", "transformer_blocks.0.norm1.linear.weight", "norm_out.linear.weight")
    meanings = ("num_attention_heads", "attention_head_dim", "patch_size", "patch_size_t",
                "use_rotary_positional_embeddings", "spatial_interpolation_scale", "temporal_interpolation_scale",
                "norm_eps")  # fmt: skip
    choices = ("sample_width", "sample_height", "sample_frames", "max_text_seq_length",
               "use_learned_positional_embeddings")  # fmt: skip

    def __init__(self, family: str) -> None:
        super().__init__(family)
        self.reads += ", or a CogVideoX checkpoint of SAT (a folder with `latest`)"

    def find_source(self, root: Path) -> Callable[[], WeightSource] | None:
        from worldsmith.families.cogvideox.sat_weights import SatWeights, find_states

        states = find_states(root)
        return None if states is None else partial(SatWeights, states)

    def model_of(self, source: WeightSource, heads: Sequence[str] = ()) -> ModelSpec:
        from worldsmith.families.cogvideox.sat_weights import SatWeights, network_settings

        if isinstance(source, SatWeights):
            return self.spec_of(self.stated(network_settings(source)))
        return super().model_of(source, heads)

    def spec_of(self, settings: Mapping[str, Any]) -> ModelSpec:
        spec = super().spec_of(settings)
        config: Any = spec.config
        config.text_encoder.max_length = config.network.max_text_seq_length
        if config.network.in_channels == 2 * config.network.out_channels:
            config.image = ImageConfig()
        return spec

    def defaults_of_run(self, tree: Mapping[str, Any]) -> CogVideoXDefaults:
        table = {name: tree["objective"][name] for name in TABLE}
        model = tree["model"]["config"]
        said = {name: value for name, value in model.get("sampling", {}).items() if name != TAG and value is not None}
        sampled = sampled_as(model["network"]["use_rotary_positional_embeddings"], said)
        return CogVideoXDefaults(captions_as_given=False, **{**clip_defaults(tree), **table, **sampled})

    def published_defaults(self, config: Any, folder: Path) -> CogVideoXDefaults:
        """What its scheduler says; without one the table of the published weights."""
        network, (_, cell, *_) = config.network, config.latent_grid
        rotary, (height, width) = network.use_rotary_positional_embeddings, network.published_size
        return CogVideoXDefaults(
            height=height * cell,
            width=width * cell,
            num_frames=network.sample_frames,
            fps=16.0 if network.patch_size_t else 8.0,
            max_caption_tokens=network.max_text_seq_length,
            **{"shift_scale": 1.0 if rotary else 3.0, **sampled_as(rotary, read_scheduler(folder))},
        )

    def check_exportable(self, config: Any) -> None:
        if config.image is not None and config.image.repeat:
            raise ValueError(
                "model.config.image.repeat = true: diffusers' pipeline has the image beside the first latent frame "
                "only; use --format native"
            )

    def pipeline_class(self, config: Any) -> str:
        return "CogVideoXPipeline" if config.image is None else "CogVideoXImageToVideoPipeline"

    def arrange(self, model: CogVideoXGenerator, parts: dict[str, Any], dtype: DType) -> dict[str, Any]:
        """Raises ValueError for a scale of an image's latents that no pipeline has."""
        image, vae = model.config.image, parts["vae"]
        if image is not None and image.latent_scale is not None:
            inverted = not isclose(image.latent_scale, vae.config.scaling_factor, rel_tol=1e-6)
            if inverted and not isclose(image.latent_scale, 1 / vae.config.scaling_factor, rel_tol=1e-6):
                scales = f"{vae.config.scaling_factor:g} or {1 / vae.config.scaling_factor:g}"
                raise ValueError(
                    f"model.config.image.latent_scale = {image.latent_scale:g}: diffusers' pipeline multiplies the "
                    f"image's latents by {scales}; use --format native"
                )
            vae.register_to_config(invert_scale_latents=inverted)
        return parts

    def scheduler(self, model: CogVideoXGenerator) -> Any:
        return model.defaults.make_scheduler(model.defaults.scheduler)

    def exports(self) -> dict[str, ExportFormat]:
        from worldsmith.families.cogvideox.write_sat import SAT

        return {**super().exports(), "sat": SAT}

    def card(self, name: str, about: Mapping[str, Any]) -> str:
        if about["format"] != "sat":
            return super().card(name, about)
        lora = ", ".join(f"{key}: {value}" for key, value in about["lora"].items())
        adapters = f" Its adapters need `lora_config.params: {{{lora}}}`." if lora else ""
        return (
            f"# {name}\n\nA checkpoint for CogVideo's SAT in {about['dtype']}, exported by Worldsmith "
            f"{about['worldsmith']}: `args.load` names this folder.{adapters}\n"
        )

    def write_foreign(
        self,
        format: str,
        folder: Path,
        spec: ModelSpec,
        source: WeightSource,
        dtype_of: Callable[[str], torch.dtype],
        vae: str | None = None,
    ) -> None:
        from worldsmith.families.cogvideox.write_sat import sat_tensors, save_sat_folder, write_vae

        if format != "sat":
            raise self.not_converted(format)
        config: Any = spec.config
        save_sat_folder(folder, sat_tensors(config.network, source, dtype_of))
        if vae is not None:
            write_vae(folder, vae)


def sampled_as(rotary: bool, said: Mapping[str, Any]) -> dict[str, Any]:
    """What is said, and else with rotary positions as CogVideoX-5B is sampled, or as 2B."""
    scheduler = said.get("scheduler", "dpm" if rotary else "ddim")
    return {"scheduler": scheduler, "dynamic_guidance": "by_timestep" if scheduler == "dpm" else "off", **said}


def read_scheduler(folder: Path) -> dict[str, Any]:
    """What a pipeline's scheduler says of how to sample. Raises UserError for one that is not of this family."""
    file = folder / "scheduler" / "scheduler_config.json"
    if not file.is_file():
        return {}
    said = read_json_object(file)
    names = [name for name, kind in SCHEDULERS.items() if kind == said.get("_class_name")]
    told = {name: said[key] for name, key in IN_SCHEDULERS.items() if key in said}
    if not names:
        raise UserError(f"{file}: expected {' or '.join(SCHEDULERS.values())}, found {said.get('_class_name')}")
    made = CogVideoXDefaults(**told).scheduler_settings()
    if other := {key: value for key, value in made.items() if key in said and said[key] != value}:
        raise UserError(f"{file}: expected {other}, found { {key: said[key] for key in other} }")
    return {"scheduler": names[0], **told}
