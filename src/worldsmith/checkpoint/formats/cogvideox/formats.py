"""`CogVideoXFormats`: all that `checkpoint/` asks of this family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.family_formats import DType, Export
from worldsmith.checkpoint.formats.pipeline.formats import PipelineFormats
from worldsmith.models.cogvideox.generator import CogVideoXGenerator
from worldsmith.models.cogvideox.image_input import ImageConfig
from worldsmith.models.cogvideox.noise_table import NoiseTable
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch

    from worldsmith.checkpoint.sources.weight_source import WeightSource


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
        from worldsmith.checkpoint.formats.cogvideox.sat_weights import SatWeights, find_states

        states = find_states(root)
        return None if states is None else partial(SatWeights, states)

    def model_of(self, source: WeightSource, heads: Sequence[str] = ()) -> ModelSpec:
        from worldsmith.checkpoint.formats.cogvideox.sat_weights import SatWeights, network_settings

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

    def defaults_of_run(self, tree: Mapping[str, Any]) -> NoiseTable:
        return NoiseTable(**{field.name: tree["objective"][field.name] for field in fields(NoiseTable)})

    def published_defaults(self, config: Any) -> NoiseTable:
        return NoiseTable(shift_scale=1.0 if config.network.use_rotary_positional_embeddings else 3.0)

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
        """With rotary positions it samples as CogVideoX-5B does, else as 2B."""
        import diffusers

        library: Any = diffusers  # its classes carry no types
        rotary = model.config.network.use_rotary_positional_embeddings
        kind = library.CogVideoXDPMScheduler if rotary else library.CogVideoXDDIMScheduler
        return kind(**scheduler_settings(model.defaults))

    def exports(self) -> dict[str, Export]:
        from worldsmith.checkpoint.formats.cogvideox.write_sat import SAT

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
        from worldsmith.checkpoint.formats.cogvideox.write_sat import sat_tensors, save, write_vae

        if format != "sat":
            raise self.not_converted(format)
        config: Any = spec.config
        save(folder, sat_tensors(config.network, source, dtype_of))
        if vae is not None:
            write_vae(folder, vae)


def scheduler_settings(table: NoiseTable) -> dict[str, Any]:
    """The settings of a CogVideoX scheduler whose noise table is this one."""
    return {
        "num_train_timesteps": table.num_timesteps,
        "beta_start": table.beta_start,
        "beta_end": table.beta_end,
        "beta_schedule": "scaled_linear",
        "prediction_type": "v_prediction",
        "rescale_betas_zero_snr": table.zero_terminal_snr,
        "snr_shift_scale": table.shift_scale,
        "timestep_spacing": "trailing",
        "clip_sample": False,
        "set_alpha_to_one": True,
        "steps_offset": 0,
    }
