"""`CogVideoXFormats`: reads checkpoints of CogVideoX, and exports them to diffusers and to CogVideo's SAT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.export_folder import (
    count_elements,
    facts_of,
    may_write,
    new_export,
    origin_of,
    state_versions,
    weights_digest,
)
from worldsmith.checkpoint.formats.family_formats import DType, ExportFormat, ExportOptions, formats_of
from worldsmith.checkpoint.formats.lora_names import LoraNames
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.checkpoint.run.generation_defaults import clip_defaults
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import TAG
from worldsmith.families.cogvideox.architecture import ImageConfig, NetworkConfig
from worldsmith.families.cogvideox.model import SCHEDULERS, CogVideoXDefaults, CogVideoXGenerator
from worldsmith.families.cogvideox.sat_keys import FREQUENCIES, NETWORK, SAT_TABLE, concatenate_chunks, sat_keys
from worldsmith.families.cogvideox.sat_weights import LATEST, STATES, SatWeights, find_states, network_settings
from worldsmith.families.diffusers_pipeline.formats import PipelineFormats
from worldsmith.files.json_file import read_json_object
from worldsmith.models.spec import ModelSpec
from worldsmith.models.video_vae.cogvideox import CogVideoXVAE, diffusers_to_sat

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TABLE = ("num_timesteps", "beta_start", "beta_end", "shift_scale", "zero_terminal_snr")
"""Fields of the objective's config that define the noise schedule."""
IN_SCHEDULERS = {
    "num_timesteps": "num_train_timesteps",
    "beta_start": "beta_start",
    "beta_end": "beta_end",
    "shift_scale": "snr_shift_scale",
    "zero_terminal_snr": "rescale_betas_zero_snr",
    "timestep_spacing": "timestep_spacing",
}
"""Name of a setting → its name in the config of a diffusers scheduler."""
RELEASE = "release"
"""Name of the SAT folder that contains the weights if the number of training steps is unknown."""

COMFYUI = {
    **{f"transformer_blocks.N.attn1.to_{name}": f"blocks.N.{name}" for name in "qkv"},
    "transformer_blocks.N.attn1.to_out.0": "blocks.N.attn_out",
    "transformer_blocks.N.ff.net.0.proj": "blocks.N.ff_proj",
    "transformer_blocks.N.ff.net.2": "blocks.N.ff_out",
    "transformer_blocks.N.norm1.linear": "blocks.N.norm1.linear",
    "transformer_blocks.N.norm2.linear": "blocks.N.norm2.linear",
    **{
        f"{name}_embedding.linear_{index}": f"{name}_embedding_linear_{index}"
        for name in ("time", "ofs")
        for index in (1, 2)
    },
    **{path: path for path in ("patch_embed.proj", "patch_embed.text_proj", "norm_out.linear", "proj_out")},
}
"""Path of a layer in diffusers → path in ComfyUI's network; `N` stands for the number of a block."""


class CogVideoXFormats(PipelineFormats):
    """Reads and exports the weights of CogVideoX models, in the formats of diffusers and of CogVideo's SAT."""

    model = CogVideoXGenerator
    marks = ("patch_embed.text_proj.weight", "transformer_blocks.0.norm1.linear.weight", "norm_out.linear.weight")
    meanings = ("num_attention_heads", "attention_head_dim", "patch_size", "patch_size_t",
                "use_rotary_positional_embeddings", "spatial_interpolation_scale", "temporal_interpolation_scale",
                "norm_eps")  # fmt: skip
    choices = ("sample_width", "sample_height", "sample_frames", "max_text_seq_length",
               "use_learned_positional_embeddings")  # fmt: skip
    lora_names = LoraNames(COMFYUI, scaled_copy="diffusers_names")

    def __init__(self, family: str) -> None:
        super().__init__(family)
        self.reads += ", or a CogVideoX checkpoint of SAT (a folder with `latest`)"

    def find_source(self, root: Path) -> Callable[[], WeightSource] | None:
        states = find_states(root)
        return None if states is None else partial(SatWeights, states)

    def model_of(self, source: WeightSource, heads: Sequence[str] = ()) -> ModelSpec:
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
        settings = {
            name: value for name, value in model.get("sampling", {}).items() if name != TAG and value is not None
        }
        sampled = complete_sampling(model["network"]["use_rotary_positional_embeddings"], settings)
        return CogVideoXDefaults(captions_as_given=False, **{**clip_defaults(tree), **table, **sampled})

    def published_defaults(self, config: Any, folder: Path) -> CogVideoXDefaults:
        """Returns the generation defaults of released weights.

        Args:
            config: Model config; its network determines the video size.
            folder: Pipeline folder; its scheduler config, if it exists, determines the noise schedule.
        """
        network, (_, cell, *_) = config.network, config.latent_grid
        rotary, (height, width) = network.use_rotary_positional_embeddings, network.published_size
        return CogVideoXDefaults(
            height=height * cell,
            width=width * cell,
            num_frames=network.sample_frames,
            fps=16.0 if network.patch_size_t else 8.0,
            max_caption_tokens=network.max_text_seq_length,
            **{"shift_scale": 1.0 if rotary else 3.0, **complete_sampling(rotary, read_scheduler(folder))},
        )

    def check_exportable(self, config: Any) -> None:
        if config.image is not None and config.image.repeat:
            raise ValueError(
                "model.config.image.repeat = true: diffusers' pipeline concatenates the image only to the first "
                "latent frame; use --format native"
            )

    def pipeline_class(self, config: Any) -> str:
        return "CogVideoXPipeline" if config.image is None else "CogVideoXImageToVideoPipeline"

    def arrange(self, model: CogVideoXGenerator, parts: dict[str, Any], dtype: DType) -> dict[str, Any]:
        """Returns `parts`; if `image.latent_scale` is set, changes `invert_scale_latents` of the VAE config in place.

        Args:
            model: The exported model.
            parts: Components by name: transformer, vae, text_encoder, tokenizer.
            dtype: Dtype of the export; not used.

        Raises:
            ValueError: If diffusers' pipeline does not support the scaling factor of the image latents.
        """
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
        return {**super().exports(), "sat": SAT}

    def card(self, name: str, about: Mapping[str, Any]) -> str:
        if about["format"] != "sat":
            return super().card(name, about)
        lora = ", ".join(f"{key}: {value}" for key, value in about["lora"].items())
        adapters = f" Its LoRA adapters require `lora_config.params: {{{lora}}}`." if lora else ""
        return (
            f"# {name}\n\nA checkpoint for CogVideo's SAT in {about['dtype']}, exported by Worldsmith "
            f"{about['worldsmith']}. To load it, set `args.load` to this folder.{adapters}\n"
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
        if format != "sat":
            raise self.not_converted(format)
        config: Any = spec.config
        save_sat_folder(folder, sat_tensors(config.network, source, dtype_of))
        if vae is not None:
            write_vae(folder, vae)


def complete_sampling(rotary: bool, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Completes sampling settings with the scheduler and guidance schedule of the released models.

    Args:
        rotary: True: rotary position embeddings and the settings of CogVideoX-5B; False: the settings of 2B.
        settings: Known settings, by field name of `CogVideoXDefaults`; they override the defaults.

    Returns:
        The completed settings.
    """
    scheduler = settings.get("scheduler", "dpm" if rotary else "ddim")
    return {"scheduler": scheduler, "dynamic_guidance": "by_timestep" if scheduler == "dpm" else "off", **settings}


def read_scheduler(folder: Path) -> dict[str, Any]:
    """Reads the sampling settings of a pipeline from its scheduler config.

    Args:
        folder: Pipeline folder.

    Returns:
        Settings by field name of `CogVideoXDefaults`; {} if the folder has no scheduler config.

    Raises:
        UserError: If the scheduler is not supported by this family.
    """
    file = folder / "scheduler" / "scheduler_config.json"
    if not file.is_file():
        return {}
    stored = read_json_object(file)
    names = [name for name, kind in SCHEDULERS.items() if kind == stored.get("_class_name")]
    settings = {name: stored[key] for name, key in IN_SCHEDULERS.items() if key in stored}
    if not names:
        raise UserError(f"{file}: expected {' or '.join(SCHEDULERS.values())}, found {stored.get('_class_name')}")
    supported = CogVideoXDefaults(**settings).scheduler_settings()
    if other := {key: value for key, value in supported.items() if key in stored and stored[key] != value}:
        raise UserError(f"{file}: expected {other}, found { {key: stored[key] for key in other} }")
    return {"scheduler": names[0], **settings}


def export_stored_sat(model: StoredModel, out: Path, options: ExportOptions) -> bool:
    """Writes a trained model as a SAT checkpoint folder.

    Without `options.merge` the adapters of a LoRA run are stored next to the weights, as in SAT.

    Args:
        model: The trained model.
        out: Folder to create.
        options: Dtype of the export, whether LoRA adapters are merged, and whether an older export is replaced.

    Returns:
        False if `out` already contains the same export.

    Raises:
        ValueError: If SAT has no name for an adapter.
    """
    if options.merge:
        model.require_effect()
    source, config = model.open(merge=options.merge), model.config
    tensors = stored_tensors(model, options)
    kept = model.has_adapters and not options.merge
    about = {
        **state_versions("sat", "torch"),
        "source": origin_of(model, merge=options.merge).as_data(),
        "dtype": options.dtype,
        "weights_sha256": weights_digest(tensors),
        "lora": {"r": config.lora_rank, "lora_alpha": config.lora_alpha} if kept else {},
        "model": formats_of(model.spec.name).exported_config(model.spec if kept else model.merged_spec),
        "generation": asdict(model.defaults),
        "card": {"parameters": count_elements(source.shapes), **facts_of(model)},
    }
    if not may_write(out, about, options.force, index=LATEST):
        return False
    with new_export(out, about, formats_of(model.spec.name).card, force=options.force) as aside:
        save_sat_folder(aside, tensors, iteration=model.iteration)
    return True


def stored_tensors(model: StoredModel, options: ExportOptions) -> dict[str, Tensor]:
    """Returns the tensors of a stored model by SAT name, in the dtype and with merged LoRA adapters as in `options`."""
    import torch

    dtype: torch.dtype = getattr(torch, options.dtype)
    source = model.open(merge=options.merge)
    return sat_tensors(model.config.network, source, lambda name: dtype, average=model.average)


SAT = ExportFormat("export_sat", LATEST, "SAT checkpoint", export_stored_sat, stored_tensors, keeps_adapters=True)


def sat_tensors(
    network: NetworkConfig, source: WeightSource, dtype_of: Callable[[str], torch.dtype], *, average: bool = False
) -> dict[str, Tensor]:
    """Converts the weights of a network to the tensors of a SAT checkpoint, including fixed position tables.

    Args:
        network: Config of the network.
        source: Weights to convert.
        dtype_of: Function from an internal parameter name to the dtype of its tensor.
        average: Whether to read the EMA weights.

    Returns:
        Tensors by SAT name, with SAT's prefix for the network.

    Raises:
        ValueError: If SAT has no name for a weight.
    """
    import torch

    tensors = fixed_position_tensors(network, dtype_of("patch_embed.proj.weight"))
    for key, chunks in sat_keys(source.shapes).items():
        parts = {name: torch.empty(source.shapes[name], dtype=dtype_of(name)) for name, _ in chunks}
        source.read_into(parts, average=average)
        tensors[key] = concatenate_chunks(chunks, parts)
    return {NETWORK + key: tensor for key, tensor in tensors.items()}


def save_sat_folder(folder: Path, tensors: Mapping[str, Tensor], iteration: int = 0) -> None:
    """Writes tensors as a SAT checkpoint: `ITERATION/mp_rank_00_model_states.pt`, and `latest`, which names ITERATION.

    Args:
        folder: Folder of the checkpoint.
        tensors: Tensors by SAT name.
        iteration: Number of training steps; 0: unknown, ITERATION is "release".
    """
    import torch

    name = str(iteration) if iteration else RELEASE
    (folder / name).mkdir(parents=True)
    torch.save({"module": dict(tensors)}, folder / name / STATES.format(0))
    (folder / LATEST).write_text(name, encoding="utf-8")


def write_vae(folder: Path, name: str) -> int:
    """Writes the VAE with the path or hub name `name` to `folder`/vae/3d-vae.pt; returns its number of tensors."""
    import torch

    vae = CogVideoXVAE.Config(vae_path=name, precision="float32", scaling_factor=1.0).build()
    state = {diffusers_to_sat(key): tensor for key, tensor in vae.model.state_dict().items()}
    (folder / "vae").mkdir()
    torch.save({"state_dict": state}, folder / "vae" / "3d-vae.pt")
    return len(state)


def fixed_position_tensors(network: NetworkConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """Returns the fixed position tensors that SAT stores with the weights, by SAT name; {} for CogVideoX 1.5."""
    if network.patch_size_t is not None:
        return {}
    return {key: table.to(dtype) for key, table in position_tables(network).items()}


def position_tables(network: NetworkConfig) -> Mapping[str, Tensor]:
    import torch
    from diffusers.models.embeddings import get_3d_rotary_pos_embed, get_3d_sincos_pos_embed

    frames = (network.sample_frames - 1) // network.temporal_compression_ratio + 1
    height, width = (side // network.patch_size for side in (network.sample_height, network.sample_width))
    if network.use_rotary_positional_embeddings:
        grid: Any = ((0, 0), (height, width))
        size = network.attention_head_dim
        cos, sin = get_3d_rotary_pos_embed(size, crops_coords=grid, grid_size=(height, width), temporal_size=frames)
        return dict(zip(FREQUENCIES, (sin, cos), strict=True))
    scales = network.spatial_interpolation_scale, network.temporal_interpolation_scale
    table = get_3d_sincos_pos_embed(network.inner_dim, (width, height), frames, *scales, output_type="pt")
    text = torch.zeros(network.max_text_seq_length, network.inner_dim)
    return {SAT_TABLE: torch.cat([text, table.flatten(0, 1).float()])[None]}
