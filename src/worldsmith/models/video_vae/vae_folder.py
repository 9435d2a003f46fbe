"""Where a VAE of diffusers lies: in a folder, in a pipeline's folder, or in a repository of the hub that is either."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from worldsmith.files.json_file import read_json_object
from worldsmith.models.model_files import find_layout, look_for_layout

FIELD = "model.config.tokenizer.vae_path"
SUBFOLDER, WEIGHTS = "vae", "diffusion_pytorch_model*.safetensors"
IN_PIPELINE = (f"{SUBFOLDER}/config.json", f"{SUBFOLDER}/{WEIGHTS}*")
ALONE = ("config.json", f"{WEIGHTS}*")
PLACES: Sequence[Sequence[str]] = (IN_PIPELINE, ALONE)
"""Where a repository has its VAE."""


def holds_vae(folder: Path, class_name: str) -> bool:
    """Whether the folder's config.json is that of this class."""
    config = folder / "config.json"
    return config.is_file() and read_json_object(config).get("_class_name") == class_name


def find_folder(name: str, class_name: str) -> Path:
    """The folder of the VAE that `vae_path` names. Raises FileNotFoundError, ValueError for another class."""
    return inside(find_layout(name, PLACES, field=FIELD), class_name)


def require_folder(name: str, class_name: str) -> None:
    """Like `find_folder`, but nothing is downloaded."""
    found = look_for_layout(name, PLACES, field=FIELD)
    if found is not None:
        inside(found, class_name)


def inside(path: Path, class_name: str) -> Path:
    """Within a folder the VAE: the folder itself, or a pipeline's subfolder. Raises ValueError for neither."""
    for folder in (path, path / SUBFOLDER):
        if holds_vae(folder, class_name):
            return folder
    raise ValueError(f"{FIELD}: '{path}' holds no {class_name} (config.json says what it is)")
