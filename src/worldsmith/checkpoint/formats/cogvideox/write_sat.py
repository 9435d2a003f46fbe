"""A CogVideoX network, with its adapters if it has any, as a checkpoint that SAT's `--load` reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.cogvideox.sat_keys import FREQUENCIES, NETWORK, SAT_TABLE, join, sat_keys
from worldsmith.checkpoint.formats.cogvideox.sat_weights import LATEST, STATES
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.models.cogvideox.architecture import NetworkConfig
from worldsmith.models.video_vae.cogvideox import CogVideoXVAE
from worldsmith.models.video_vae.cogvideox_pt import sat_name

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RELEASE = "release"
"""The name of an iteration's folder where nobody counted."""


def write_sat(
    folder: Path,
    network: NetworkConfig,
    source: WeightSource,
    dtype_of: Callable[[str], torch.dtype],
    *,
    average: bool = False,
    iteration: int = 0,
) -> int:
    """Writes `latest` and `ITERATION/mp_rank_00_model_states.pt`; returns how many tensors there are.

    The whole is in memory once. Raises ValueError for weights that SAT has no place for.
    """
    import torch

    keys = sat_keys(source.shapes)
    tensors = tables(network, dtype_of("patch_embed.proj.weight"))
    for key, held in keys.items():
        parts = {name: torch.empty(source.shapes[name], dtype=dtype_of(name)) for name, _ in held}
        source.read_into(parts, average=average)
        tensors[key] = join(held, parts)
    name = str(iteration) if iteration else RELEASE
    (folder / name).mkdir(parents=True)
    torch.save({"module": {NETWORK + key: t for key, t in tensors.items()}}, folder / name / STATES.format(0))
    (folder / LATEST).write_text(name, encoding="utf-8")
    return len(tensors)


def write_vae(folder: Path, name: str) -> int:
    """Writes `vae/3d-vae.pt` of the VAE that `name` names as `vae_path` does; returns how many tensors there are."""
    import torch

    vae = CogVideoXVAE.Config(vae_path=name, precision="float32", scaling_factor=1.0).build()
    state = {sat_name(key): tensor for key, tensor in vae.model.state_dict().items()}
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
