"""A CogVideoX network, with its adapters if it has any, as a checkpoint that SAT's `--load` reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
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
from worldsmith.checkpoint.formats.family_formats import ExportFormat, ExportOptions, formats_of
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.families.cogvideox.architecture import NetworkConfig
from worldsmith.families.cogvideox.sat_keys import FREQUENCIES, NETWORK, SAT_TABLE, join, sat_keys
from worldsmith.families.cogvideox.sat_weights import LATEST, STATES
from worldsmith.files.atomic import folder_aside
from worldsmith.models.video_vae.cogvideox import CogVideoXVAE, diffusers_to_sat

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RELEASE = "release"
"""The name of an iteration's folder where nobody counted."""


def export_stored_sat(model: StoredModel, out: Path, options: ExportOptions) -> bool:
    """Writes a trained model as the folder `out`; False when the same export is there already.

    Without `merge` a LoRA run's adapters stay beside the weights, as SAT has them. Raises ValueError for adapters that
    SAT has no place for.
    """
    if options.merge:
        model.require_effect()
    source, config = model.open(merge=options.merge), model.config
    tensors = stored_tensors(model, options)
    kept = model.has_adapters and not options.merge
    about = {
        "worldsmith": __version__,
        "versions": {"torch": version("torch")},
        "format": "sat",
        "source": asdict(origin_of(model, merge=options.merge)),
        "dtype": options.dtype,
        "weights_sha256": weights_digest(tensors),
        "lora": {"r": config.lora_rank, "lora_alpha": config.lora_alpha} if kept else {},
        "model": formats_of(model.spec.name).exported_config(model.spec if kept else model.merged_spec),
        "generation": asdict(model.defaults),
        "card": {"parameters": count_numbers(source.shapes), **facts_of(model)},
    }
    if not may_write(out, about, options.force, index=LATEST):
        return False
    with folder_aside(out) as aside:
        save_sat_folder(aside, tensors, iteration=model.iteration)
        (aside / "README.md").write_text(formats_of(model.spec.name).card(out.name, about), encoding="utf-8")
        publish_export(aside, out, about, force=options.force)
    return True


def stored_tensors(model: StoredModel, options: ExportOptions) -> dict[str, Tensor]:
    """`sat_tensors` of a model on disk."""
    import torch

    dtype: torch.dtype = getattr(torch, options.dtype)
    source = model.open(merge=options.merge)
    return sat_tensors(model.config.network, source, lambda name: dtype, average=model.average)


SAT = ExportFormat("export_sat", LATEST, "SAT checkpoint", export_stored_sat, stored_tensors, keeps_adapters=True)


def sat_tensors(
    network: NetworkConfig,
    source: WeightSource,
    dtype_of: Callable[[str], torch.dtype],
    *,
    average: bool = False,
) -> dict[str, Tensor]:
    """All tensors of a network by SAT's names. Raises ValueError for weights that SAT has no place for."""
    import torch

    tensors = tables(network, dtype_of("patch_embed.proj.weight"))
    for key, held in sat_keys(source.shapes).items():
        parts = {name: torch.empty(source.shapes[name], dtype=dtype_of(name)) for name, _ in held}
        source.read_into(parts, average=average)
        tensors[key] = join(held, parts)
    return {NETWORK + key: tensor for key, tensor in tensors.items()}


def save_sat_folder(folder: Path, tensors: Mapping[str, Tensor], iteration: int = 0) -> None:
    """Writes `latest` and `ITERATION/mp_rank_00_model_states.pt`."""
    import torch

    name = str(iteration) if iteration else RELEASE
    (folder / name).mkdir(parents=True)
    torch.save({"module": dict(tensors)}, folder / name / STATES.format(0))
    (folder / LATEST).write_text(name, encoding="utf-8")


def write_vae(folder: Path, name: str) -> int:
    """Writes `vae/3d-vae.pt` of the VAE that `name` names as `vae_path` does; returns how many tensors there are."""
    import torch

    vae = CogVideoXVAE.Config(vae_path=name, precision="float32", scaling_factor=1.0).build()
    state = {diffusers_to_sat(key): tensor for key, tensor in vae.model.state_dict().items()}
    (folder / "vae").mkdir()
    torch.save({"state_dict": state}, folder / "vae" / "3d-vae.pt")
    return len(state)


def tables(network: NetworkConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """The fixed tensors of positions that SAT keeps with the weights; CogVideoX 1.5 has none."""
    if network.patch_size_t is not None:
        return {}
    return {key: table.to(dtype) for key, table in _tables(network).items()}


def _tables(network: NetworkConfig) -> Mapping[str, Tensor]:
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
