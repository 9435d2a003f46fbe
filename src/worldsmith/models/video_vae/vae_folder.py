"""Finds diffusers VAEs, in a pipeline, in their own folder or on the hub; and the configs of released VAEs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worldsmith.files.json_file import read_json_object
from worldsmith.models.model_files import SubstituteComponent, find_layout, find_layout_without_download

FIELD = "model.config.tokenizer.vae_path"
SUBFOLDER, WEIGHTS = "vae", "diffusion_pytorch_model*.safetensors"
IN_PIPELINE = (f"{SUBFOLDER}/config.json", f"{SUBFOLDER}/{WEIGHTS}*")
ALONE = ("config.json", f"{WEIGHTS}*")
PLACES: Sequence[Sequence[str]] = (IN_PIPELINE, ALONE)
"""File patterns of a VAE in a repository, one list per layout: in a pipeline, or in the root."""

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
"""Config of the VAE of Wan 2.1, which Wan 2.2 A14B uses too (127 M parameters)."""

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
"""Config of the VAE of CogVideoX-5B (215 M parameters); CogVideoX-2B has another scaling factor."""

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
"""Config of the VAE of FLUX.1 (84 M parameters)."""


def holds_vae(folder: Path, class_name: str) -> bool:
    """Returns whether config.json in `folder` names the diffusers class `class_name`."""
    config = folder / "config.json"
    return config.is_file() and read_json_object(config).get("_class_name") == class_name


def find_vae_folder(name: str, class_name: str) -> Path:
    """Returns the folder of the VAE `name`; downloads it if needed.

    Args:
        name: Value of `vae_path`: a folder of the VAE or of a pipeline, or a hub repository.
        class_name: Expected diffusers class.

    Raises:
        FileNotFoundError: If no VAE of that name exists.
        ValueError: If the folder contains another class.
    """
    return find_vae_within(find_layout(name, PLACES, field=FIELD), class_name)


def require_vae_folder(name: str, class_name: str) -> None:
    """Raises an error if the VAE `name` does not exist locally or on the hub; downloads no files.

    Args:
        name: Value of `vae_path`: a folder of the VAE or of a pipeline, or a hub repository.
        class_name: Expected diffusers class.

    Raises:
        FileNotFoundError: If no VAE of that name exists.
        ValueError: If the folder contains another class.
    """
    found = find_layout_without_download(name, PLACES, field=FIELD)
    if found is not None:
        find_vae_within(found, class_name)


def find_vae_within(path: Path, class_name: str) -> Path:
    """Returns `path` or its subfolder `vae`: the first one that contains a VAE of the given diffusers class.

    Raises:
        ValueError: If neither contains it.
    """
    for folder in (path, path / SUBFOLDER):
        if holds_vae(folder, class_name):
            return folder
    raise ValueError(f"{FIELD}: '{path}' contains no {class_name} (config.json states the class)")


def vae_substitute(
    model: str, settings: dict[str, Any], *, places: tuple[Any, ...] = (IN_PIPELINE, ALONE)
) -> SubstituteComponent:
    """Returns the substitute files for a released VAE, which a simulation of a run uses if the VAE is not available.

    The files are a `config.json` with `settings`, and an empty weights file.

    Args:
        model: Name of the released model, such as "Wan 2.1", for messages.
        settings: Content of the `config.json` of the VAE.
        places: Glob patterns of the VAE's files (config and weights) in a model repository, one tuple per possible
            layout. Default: in the subfolder `vae` of a pipeline, or in the root of the repository.

    Returns:
        The substitute for the VAE that the config field `vae_path` names.
    """
    contents = {"config.json": settings, WEIGHTS.replace("*", ""): None}
    return SubstituteComponent("vae_path", f"the VAE of {model}", places, contents)
