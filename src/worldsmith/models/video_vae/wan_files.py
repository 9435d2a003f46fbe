"""Finding and reading the VAE: a diffusers folder, `Wan2.2_VAE.pth`, or a repository of the hub that holds either."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.files.json_file import are_numbers, read_json_object
from worldsmith.files.model_folder import load_from_folder
from worldsmith.models.model_files import SCHEME, find_layout, local_path, look_for_layout
from worldsmith.models.real_values import in_simulation, without_values
from worldsmith.models.torch_file import FILE_ENDINGS, require_fit
from worldsmith.models.video_vae.vae_folder import ALONE, IN_PIPELINE, SUBFOLDER, WEIGHTS, holds_vae
from worldsmith.models.video_vae.wan_pth import RELEASED, read_pth

if TYPE_CHECKING:
    import torch

CLASS_NAME = "AutoencoderKLWan"
PTH_NAME = "Wan2.2_VAE.pth"
SPATIAL_FACTOR, TEMPORAL_FACTOR = RELEASED["scale_factor_spatial"], RELEASED["scale_factor_temporal"]
"""Pixels of a latent cell of Wan 2.2, in height and in width, and frames of a latent frame after the first."""
PLACES = (IN_PIPELINE, (PTH_NAME,), ALONE)
"""Where a repository has its VAE: a pipeline's subfolder, the released file, the repository itself."""


def find_vae(name: str) -> Path:
    """The `.pth` file or the diffusers folder that `vae_path` names. Raises FileNotFoundError."""
    if name.endswith(FILE_ENDINGS) and not name.startswith(SCHEME):
        return local_path(name)
    return inside(find_layout(name, PLACES, field="vae_path"))


def require_vae(name: str, cell: int) -> None:
    """Raises FileNotFoundError or ValueError when `vae_path` names no VAE; reads no weights and downloads nothing."""
    if name.endswith(FILE_ENDINGS) and not name.startswith(SCHEME):
        read_settings(find_vae(name), cell)
    elif (found := look_for_layout(name, PLACES, field="vae_path")) is not None:
        read_settings(inside(found), cell)


def inside(path: Path) -> Path:
    """Within a folder of several things the VAE: a pipeline's subfolder `vae`, or the released file."""
    found = (path, path / SUBFOLDER, path / PTH_NAME)
    return next((place for place in found if place.is_file() or holds_vae(place, CLASS_NAME)), path)


def read_settings(source: Path, cell: int = SPATIAL_FACTOR) -> dict[str, Any]:
    """The VAE's config, checked before anything heavy is loaded: of a folder, of a `.pth` file, or the released one.

    `cell`: the pixels of a latent cell that it must have.
    """
    is_file = source.suffix in FILE_ENDINGS or source.is_file()
    config = source.with_suffix(".json") if is_file else source / "config.json"
    if is_file and not source.is_file():
        raise FileNotFoundError(f"vae_path: there is no file '{source}'")
    if not is_file and not config.is_file():
        raise FileNotFoundError(
            f"vae_path: no config.json in '{source}'; give the folder of a diffusers {CLASS_NAME} "
            f"(in a pipeline export it is the subfolder 'vae') or {PTH_NAME}"
        )
    settings = RELEASED if is_file and not config.is_file() else read_json_object(config)
    found = settings.get("_class_name")
    if found != CLASS_NAME:
        raise ValueError(f"vae_path: '{source}' holds a {found or 'config without _class_name'}, expected {CLASS_NAME}")
    factors = settings.get("scale_factor_spatial"), settings.get("scale_factor_temporal")
    if factors != (cell, TEMPORAL_FACTOR):
        raise ValueError(
            f"vae_path: '{config}' says {factors[0]} pixels and {factors[1]} frames to a latent cell, expected "
            f"{cell} and {TEMPORAL_FACTOR}"
        )
    for name in ("latents_mean", "latents_std"):
        require_statistics(settings, name, config)
    if not is_file and not any(source.glob(WEIGHTS)):
        raise FileNotFoundError(f"vae_path: '{source}' has a config.json but no {WEIGHTS}")
    return settings


def require_statistics(settings: dict[str, Any], name: str, config: Path) -> None:
    """Raises ValueError for a mean or deviation that is not one finite number for each latent channel."""
    values, channels = settings.get(name, []), settings.get("z_dim")
    length = len(values) if isinstance(values, list) else 0
    if length != channels:
        raise ValueError(f"vae_path: '{config}' has {length} values in {name}, expected z_dim = {channels}")
    positive = name == "latents_std"
    if not (are_numbers(values, above=0) if positive else are_numbers(values)):
        expected = f"finite numbers{' above 0' if positive else ''}"
        raise ValueError(f"vae_path: '{config}': {name}: expected {expected}, found {values}")


def load_model(source: Path, settings: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Any:
    """The VAE, an `AutoencoderKLWan`, on the device in `dtype`."""
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
    require_fit(state, model.state_dict(), source, field="vae_path")
    model = model.to_empty(device=device)
    model.load_state_dict(state)
    return model
