"""Finds and reads the VAE of Wan: a diffusers folder, `Wan2.2_VAE.pth`, or a hub repository with either.

`Wan2.2_VAE.pth` is read without running code in it. It has no config: that of the released VAE is used, unless a JSON
file with the same stem is next to it (`Wan2.2_VAE.json`); a VAE of another size needs one.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.files.json_file import are_numbers, read_json_object
from worldsmith.files.remote import in_store
from worldsmith.files.untrusted_folder import load_from_folder
from worldsmith.models.model_files import SCHEME, find_layout, find_layout_without_download, local_path
from worldsmith.models.real_values import in_simulation, without_values
from worldsmith.models.video_vae.vae_folder import ALONE, IN_PIPELINE, SUBFOLDER, WAN21, WEIGHTS, holds_vae
from worldsmith.models.weights.torch_file import FILE_ENDINGS, read_torch_file, require_expected_tensors

if TYPE_CHECKING:
    import torch
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
    **WAN21,
    "base_dim": 160,
    "decoder_base_dim": 256,
    "z_dim": 48,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "latents_mean": LATENTS_MEAN,
    "latents_std": LATENTS_STD,
}
"""Config in diffusers' format of the released VAE of Wan 2.2 (704.7 M parameters)."""
CLASS_NAME = RELEASED["_class_name"]
PTH_NAME = "Wan2.2_VAE.pth"
SPATIAL_FACTOR, TEMPORAL_FACTOR = RELEASED["scale_factor_spatial"], RELEASED["scale_factor_temporal"]
"""Compression of Wan 2.2: pixels per latent, in height and in width, and frames per latent frame after the first."""
PLACES = (IN_PIPELINE, (PTH_NAME,), ALONE)
"""File patterns of a VAE in a repository: a pipeline's subfolder, the released file, or the root."""

RESIDUAL = {"residual.0": "norm1", "residual.2": "conv1", "residual.3": "norm2", "residual.6": "conv2"}
SHORTCUT = {"shortcut": "conv_shortcut"}
ENDS = {"conv1": "quant_conv", "conv2": "post_quant_conv"}
MIDDLE = {"0": "resnets.0", "1": "attentions.0", "2": "resnets.1"}
HEAD = {"head.0": "norm_out", "head.2": "conv_out", "conv1": "conv_in"}
STAGE = {"downsamples": ("down_blocks", "downsampler"), "upsamples": ("up_blocks", "upsampler")}


def find_vae(name: str) -> Path:
    """Returns the `.pth` file or diffusers folder of a VAE; a folder is downloaded if needed.

    Args:
        name: Value of `vae_path`.

    Raises:
        FileNotFoundError: If the folder does not exist; the existence of a `.pth` file is not checked.
    """
    if is_local_file(name):
        return local_path(name)
    return vae_within(find_layout(name, PLACES, field="vae_path"))


def is_local_file(name: str) -> bool:
    """Returns whether `vae_path` is the local path of a file such as Wan2.2_VAE.pth, and no folder or address."""
    return name.endswith(FILE_ENDINGS) and not name.startswith(SCHEME) and not in_store(name)


def require_vae(name: str, cell: int) -> None:
    """Raises FileNotFoundError or ValueError unless `vae_path` names a Wan VAE of the expected spatial compression.

    Downloads no files: of a VAE that is only on the hub, the existence of the files is checked and not the config.

    Args:
        name: Value of `vae_path`.
        cell: Expected pixels per latent position.
    """
    if is_local_file(name):
        read_vae_config(find_vae(name), cell)
    elif (found := find_layout_without_download(name, PLACES, field="vae_path")) is not None:
        read_vae_config(vae_within(found), cell)


def vae_within(path: Path) -> Path:
    """Returns the VAE in a downloaded or local folder.

    Candidates are `path`, its subfolder `vae` and its file Wan2.2_VAE.pth; if none is a VAE, `path` is returned.
    """
    found = (path, path / SUBFOLDER, path / PTH_NAME)
    return next((place for place in found if place.is_file() or holds_vae(place, CLASS_NAME)), path)


def read_vae_config(source: Path, cell: int = SPATIAL_FACTOR) -> dict[str, Any]:
    """Returns the config of a VAE, checked before any weights are loaded.

    A `.pth` file has the config of the JSON file next to it, else that of the released VAE.

    Args:
        source: A diffusers folder or a `.pth` file.
        cell: Expected pixels per latent position.

    Raises:
        FileNotFoundError: If the file, config.json or the weights are missing.
        ValueError: If the config is of another class, or a factor or statistic is wrong.
    """
    is_file = source.suffix in FILE_ENDINGS or source.is_file()
    config = source.with_suffix(".json") if is_file else source / "config.json"
    if is_file and not source.is_file():
        raise FileNotFoundError(f"vae_path: the file '{source}' does not exist")
    if not is_file and not config.is_file():
        raise FileNotFoundError(
            f"vae_path: no config.json in '{source}'; use the folder of a diffusers {CLASS_NAME} (in a pipeline "
            f"export it is the subfolder 'vae') or {PTH_NAME}"
        )
    settings = RELEASED if is_file and not config.is_file() else read_json_object(config)
    found = settings.get("_class_name")
    if found != CLASS_NAME:
        raise ValueError(
            f"vae_path: '{source}' contains a {found or 'config without _class_name'}, expected {CLASS_NAME}"
        )
    factors = settings.get("scale_factor_spatial"), settings.get("scale_factor_temporal")
    if factors != (cell, TEMPORAL_FACTOR):
        raise ValueError(
            f"vae_path: '{config}' states {factors[0]} pixels and {factors[1]} frames per latent, expected {cell} "
            f"and {TEMPORAL_FACTOR}"
        )
    for name in ("latents_mean", "latents_std"):
        require_statistics(settings, name, config)
    if not is_file and not any(source.glob(WEIGHTS)):
        raise FileNotFoundError(f"vae_path: '{source}' has a config.json but no {WEIGHTS}")
    return settings


def require_statistics(settings: dict[str, Any], name: str, config: Path) -> None:
    """Raises ValueError unless `settings[name]` is a list with one finite number per latent channel.

    `settings`: VAE config; `name`: "latents_mean" or "latents_std" (numbers above 0); `config`: its file, for messages.
    """
    values, channels = settings.get(name, []), settings.get("z_dim")
    length = len(values) if isinstance(values, list) else 0
    if length != channels:
        raise ValueError(f"vae_path: '{config}' has {length} values in {name}, expected z_dim = {channels}")
    positive = name == "latents_std"
    if not (are_numbers(values, above=0) if positive else are_numbers(values)):
        expected = f"finite numbers{' above 0' if positive else ''}"
        raise ValueError(f"vae_path: '{config}': {name}: expected {expected}, found {values}")


def load_model(source: Path, settings: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Any:
    """Returns a diffusers `AutoencoderKLWan` with its weights on a device.

    Args:
        source: A diffusers folder or a `.pth` file.
        settings: Config of the VAE, from `read_vae_config`.
        dtype: Dtype of the weights.
        device: Device of the weights.

    Raises:
        FileNotFoundError: If the `.pth` file does not exist.
        ValueError: If the `.pth` file is damaged or does not match the config.
    """
    import torch
    from diffusers import AutoencoderKLWan

    if in_simulation():
        return without_values(partial(AutoencoderKLWan.from_config, settings, trust_remote_code=False), dtype, device)
    if source.is_dir():
        model = load_from_folder(AutoencoderKLWan, source, torch_dtype=dtype)
        return model.to(device)
    state = read_pth(source)
    with torch.device("meta"):
        model = AutoencoderKLWan.from_config(settings, trust_remote_code=False).to(dtype)
    require_expected_tensors(state, model.state_dict(), source, field="vae_path")
    model = model.to_empty(device=device)
    model.load_state_dict(state)
    return model


def released_to_diffusers(name: str) -> str | None:
    """Converts a tensor name in Wan2.2_VAE.pth to the name in `AutoencoderKLWan`; None for an unknown name."""
    path, _, leaf = name.rpartition(".")
    tower, _, inner = path.partition(".")
    if path in ENDS:
        return f"{ENDS[path]}.{leaf}"
    if tower not in ("encoder", "decoder"):
        return None
    found = _stage_module(tower, inner) or _middle_module(inner) or HEAD.get(inner)
    return found and f"{tower}.{found}.{leaf}"


def _stage_module(tower: str, inner: str) -> str | None:
    """Converts `downsamples.1.downsamples.0.residual.2` to `down_blocks.1.resnets.0.conv1`; also for `upsamples`.

    `inner`: module path in Wan2.2_VAE.pth within the encoder or decoder, which `tower` names. Returns the path in
    diffusers; None if `inner` is not in a down- or upsampling stage.
    """
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
    """Converts `middle.1.to_qkv` to `mid_block.attentions.0.to_qkv`, `middle.0.residual.6` to `….resnets.0.conv2`.

    `inner`: module path in Wan2.2_VAE.pth within the encoder or decoder. Returns the path in diffusers; None if `inner`
    is not in the middle block.
    """
    match = re.fullmatch(r"middle\.([012])\.(.+)", inner)
    if match is None:
        return None
    position, module = match.groups()
    found = module if position == "1" and module in ("norm", "to_qkv", "proj") else None
    if position != "1":
        found = RESIDUAL.get(module)
    return found and f"mid_block.{MIDDLE[position]}.{found}"


def read_pth(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a `.pth` file under diffusers' names, mapped from disk.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, contains anything but tensors, or is not the VAE of Wan 2.2.
    """
    advice = "download Wan2.2_VAE.pth again from its publisher, or use a diffusers folder with safetensors"
    content = read_torch_file(path, field="vae_path", advice=advice)
    names = {name: released_to_diffusers(name) for name in content}
    unknown = [name for name, found in names.items() if found is None]
    if unknown:
        raise ValueError(
            f"vae_path: '{path}' is not a Wan 2.2 VAE: {len(unknown)} of {len(names)} tensor names are unknown, such "
            f"as '{unknown[0]}'; the VAE of Wan 2.1 has another architecture and does not fit this model"
        )
    return {found: content[name] for name, found in names.items() if found is not None}
