"""`Wan2.2_VAE.pth`: the file in which the VAE was released, read without running any code that it may hold.

Its parameter names are those of the VAE's own implementation; `diffusers_name` gives the name of the same parameter in
diffusers' `AutoencoderKLWan`. The file has no config of its own: it is read with the released one, unless a JSON file
of the same stem lies beside it (`Wan2.2_VAE.json` beside `Wan2.2_VAE.pth`), which a VAE of another size needs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.models.torch_file import read_torch_file

if TYPE_CHECKING:
    from torch import Tensor

LATENTS_MEAN = [
    -0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813, 0.0891,
    0.1570, -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502,
    -0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230, -0.0313, -0.1649, 0.0117, 0.0723,
    -0.2839, -0.2083, -0.0520, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667,
]  # fmt: skip
LATENTS_STD = [
    0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901,
    0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
    0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944,
    0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744,
]  # fmt: skip
RELEASED: dict[str, Any] = {
    "_class_name": "AutoencoderKLWan",
    "base_dim": 160,
    "decoder_base_dim": 256,
    "z_dim": 48,
    "dim_mult": [1, 2, 4, 4],
    "num_res_blocks": 2,
    "attn_scales": [],
    "temperal_downsample": [False, True, True],
    "dropout": 0.0,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "scale_factor_temporal": 4,
    "latents_mean": LATENTS_MEAN,
    "latents_std": LATENTS_STD,
}
"""The config of the released VAE (704.7 M parameters), in diffusers' words."""

RESIDUAL = {"residual.0": "norm1", "residual.2": "conv1", "residual.3": "norm2", "residual.6": "conv2"}
SHORTCUT = {"shortcut": "conv_shortcut"}
ENDS = {"conv1": "quant_conv", "conv2": "post_quant_conv"}
MIDDLE = {"0": "resnets.0", "1": "attentions.0", "2": "resnets.1"}
HEAD = {"head.0": "norm_out", "head.2": "conv_out", "conv1": "conv_in"}
STAGE = {"downsamples": ("down_blocks", "downsampler"), "upsamples": ("up_blocks", "upsampler")}


def diffusers_name(name: str) -> str | None:
    """The name of a parameter of the released file in `AutoencoderKLWan`; None for a name that the file cannot have."""
    path, _, leaf = name.rpartition(".")
    tower, _, inner = path.partition(".")
    if path in ENDS:
        return f"{ENDS[path]}.{leaf}"
    if tower not in ("encoder", "decoder"):
        return None
    found = _stage_module(tower, inner) or _middle_module(inner) or HEAD.get(inner)
    return found and f"{tower}.{found}.{leaf}"


def _stage_module(tower: str, inner: str) -> str | None:
    """`downsamples.1.downsamples.0.residual.2` → `down_blocks.1.resnets.0.conv1`; and the same for `upsamples`."""
    side = "downsamples" if tower == "encoder" else "upsamples"
    match = re.fullmatch(rf"{side}\.(\d+)\.{side}\.(\d+)\.(.+)", inner)
    if match is None:
        return None
    block, position, module = match.groups()
    blocks, resampler = STAGE[side]
    if module in ("resample.1", "time_conv"):
        return f"{blocks}.{block}.{resampler}.{module}"
    found = (RESIDUAL | SHORTCUT).get(module)
    return found and f"{blocks}.{block}.resnets.{position}.{found}"


def _middle_module(inner: str) -> str | None:
    """`middle.1.to_qkv` → `mid_block.attentions.0.to_qkv`; `middle.0.residual.6` → `mid_block.resnets.0.conv2`."""
    match = re.fullmatch(r"middle\.([012])\.(.+)", inner)
    if match is None:
        return None
    position, module = match.groups()
    found = module if position == "1" and module in ("norm", "to_qkv", "proj") else None
    if position != "1":
        found = RESIDUAL.get(module)
    return found and f"mid_block.{MIDDLE[position]}.{found}"


def read_pth(path: Path) -> dict[str, Tensor]:
    """The tensors of the file under diffusers' names, mapped from disk rather than read.

    Raises FileNotFoundError for a missing file, ValueError for one that holds anything but tensors under the names of
    the Wan 2.2 VAE, or is damaged.
    """
    advice = "get Wan2.2_VAE.pth anew from its publisher, or give a diffusers folder with safetensors"
    content = read_torch_file(path, field="vae_path", advice=advice)
    names = {name: diffusers_name(name) for name in content}
    unknown = [name for name, found in names.items() if found is None]
    if unknown:
        raise ValueError(
            f"vae_path: '{path}' is no Wan 2.2 VAE: {len(unknown)} of {len(names)} names are unknown, such as "
            f"'{unknown[0]}'; the VAE of Wan 2.1 has another form and does not fit this model"
        )
    return {found: content[name] for name, found in names.items() if found is not None}
