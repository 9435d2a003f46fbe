"""Configs of published VAEs, in diffusers' words."""

from __future__ import annotations

from typing import Any

from worldsmith.models.model_files import PublishedPart
from worldsmith.models.video_vae.vae_folder import ALONE, IN_PIPELINE, WEIGHTS

WAN21: dict[str, Any] = {
    "_class_name": "AutoencoderKLWan",
    "base_dim": 96,
    "z_dim": 16,
    "dim_mult": [1, 2, 4, 4],
    "num_res_blocks": 2,
    "attn_scales": [],
    "temperal_downsample": [False, True, True],
    "dropout": 0.0,
    "scale_factor_spatial": 8,
    "scale_factor_temporal": 4,
    "latents_mean": [
        -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
        0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
    ],
    "latents_std": [
        2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
        3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
    ],
}  # fmt: skip
"""Of Wan 2.1 and of the experts of Wan 2.2 A14B (127 M parameters)."""

COGVIDEOX: dict[str, Any] = {
    "_class_name": "AutoencoderKLCogVideoX",
    "block_out_channels": [128, 256, 256, 512],
    "latent_channels": 16,
    "layers_per_block": 3,
    "norm_num_groups": 32,
    "temporal_compression_ratio": 4,
    "sample_height": 480,
    "sample_width": 720,
    "scaling_factor": 0.7,
}
"""Of CogVideoX-5B; that of 2B differs in its scale (215 M parameters)."""

FLUX: dict[str, Any] = {
    "_class_name": "AutoencoderKL",
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "latent_channels": 16,
    "layers_per_block": 2,
    "norm_num_groups": 32,
    "sample_size": 1024,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
"""Of FLUX.1 (84 M parameters)."""


def vae_part(what: str, settings: dict[str, Any], *, places: tuple[Any, ...] = (IN_PIPELINE, ALONE)) -> PublishedPart:
    contents = {"config.json": settings, WEIGHTS.replace("*", ""): None}
    return PublishedPart("vae_path", f"the VAE of {what}", places, contents)
