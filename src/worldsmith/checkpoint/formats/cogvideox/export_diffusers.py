"""A trained CogVideoX as a folder that `diffusers.CogVideoXPipeline.from_pretrained` loads."""

from __future__ import annotations

from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith import __version__
from worldsmith.checkpoint.formats.export_folder import (
    count_numbers,
    facts_of,
    may_write,
    origin_of,
    publish_export,
    weights_digest,
)
from worldsmith.checkpoint.formats.family_formats import DType, Export, ExportOptions
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config.tree.plain import to_dict
from worldsmith.files.atomic import folder_aside
from worldsmith.models.cogvideox.generator import CogVideoXGenerator
from worldsmith.models.cogvideox.noise_table import NoiseTable
from worldsmith.models.parameter_names import native_parameters

if TYPE_CHECKING:
    from torch import Tensor

PIPELINE_INDEX = "model_index.json"


def export_stored(model: StoredModel, out: Path, options: ExportOptions) -> bool:
    """Writes the pipeline folder `out`; False when the same export is there already.

    Raises ValueError for a network that is not that of text to video.
    """
    import torch

    network = model.config.network
    if network.in_channels != network.out_channels or network.patch_size_t or network.ofs_embed_dim:
        raise ValueError(
            "only networks of text to video (CogVideoX 1.0) are exported as pipelines; use --format native"
        )
    model.require_effect()
    generator: CogVideoXGenerator = model.load(full_precision=True)
    dtype: torch.dtype = getattr(torch, options.dtype)
    weights = {name: p.detach().cpu().to(dtype) for name, p in native_parameters(generator.network).items()}
    about = {
        "worldsmith": __version__,
        "versions": {name: version(name) for name in ("torch", "diffusers", "transformers")},
        "format": "diffusers",
        "source": asdict(origin_of(model, merge=True)),
        "dtype": options.dtype,
        "weights_sha256": weights_digest(weights),
        "vae": generator.latent_fingerprint,
        "generation": asdict(generator.defaults),
        "model": described(model),
        "card": {"parameters": count_numbers({name: w.shape for name, w in weights.items()}), **facts_of(model)},
    }
    if not may_write(out, about, options.force, index=PIPELINE_INDEX):
        return False
    with folder_aside(out) as aside:
        build_pipeline(generator, weights, options.dtype).save_pretrained(aside)
        (aside / "README.md").write_text(model.formats.card(out.name, about), encoding="utf-8")
        publish_export(aside, out, about, force=options.force)
    return True


DIFFUSERS = Export("export", PIPELINE_INDEX, "pipeline", export_stored)


def described(model: StoredModel) -> dict[str, Any]:
    """The model as the folder describes it: its components are in the folder."""
    described = to_dict(model.merged_spec)
    described["config"]["tokenizer"]["vae_path"] = described["config"]["text_encoder"]["path"] = "."
    return described


def build_pipeline(generator: CogVideoXGenerator, weights: dict[str, Tensor], dtype: DType) -> Any:
    """The pipeline object; with rotary positions it samples as CogVideoX-5B does, else as 2B."""
    import diffusers
    import torch

    library: Any = diffusers  # its classes carry no types
    config = generator.config
    transformer = library.CogVideoXTransformer3DModel(**asdict(config.network)).to(getattr(torch, dtype))
    transformer.load_state_dict(weights, strict=True)
    vae = replace(config.tokenizer, precision=dtype).build(device="cpu")
    vae.model.register_to_config(scaling_factor=vae.scaling_factor)
    text = replace(config.text_encoder, precision=dtype).build()
    text.load("cpu")
    rotary = config.network.use_rotary_positional_embeddings
    scheduler = library.CogVideoXDPMScheduler if rotary else library.CogVideoXDDIMScheduler
    return library.CogVideoXPipeline(
        tokenizer=text.tokenizer,
        text_encoder=text.encoder,
        vae=vae.model,
        transformer=transformer,
        scheduler=scheduler(**scheduler_settings(generator.defaults)),
    )


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
