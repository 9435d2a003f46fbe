"""The vision tower that is stored with the weights of a generator or reasoner, under its own names (`blocks.0.…`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from worldsmith.checkpoint.formats.weight_formats import Naming
from worldsmith.checkpoint.sources.safetensors_weights import (
    SafetensorsWeights,
    strip_wrappers,
    tensor_files,
    weight_folder,
)
from worldsmith.checkpoint.sources.weight_source import JoinedWeights, WeightSource
from worldsmith.config.errors import UserError
from worldsmith.files.json_file import read_json_object
from worldsmith.files.untrusted_folder import read_weight_map

ENCODER = "vision_encoder"
"""Name of the folder with the vision tower in a diffusers repository, and prefix of its tensor names."""
TOWER_NAME = re.compile(r"(?:(?:model\.)?net\.)?(?:language_model\.|model\.)?visual\.(?P<name>.+)")
"""Tensor names of a vision tower within a complete model; the group `name` is the name within the tower."""


def find_tower(source: WeightSource) -> WeightSource | None:
    """Finds the vision tower of a model: among the weights `source`, or in the folder `vision_encoder/` next to them.

    Returns:
        Weights of the tower by their names within the tower; None if the model has no vision tower.

    Raises:
        UserError: If a config or index file states that the model has a vision tower, but it is missing.
    """
    if not isinstance(source, SafetensorsWeights):
        inside = tower_names(source.shapes)
        places = {name: (source, there) for name, there in inside.items()}
        return JoinedWeights(f"vision tower in {source.describe}", places) if places else None
    plain = strip_wrappers(source.files)
    own = [key for key, stored in plain.items() if source.files[stored].parent.name == ENCODER]
    names = {**tower_names(plain, beside=True), **tower_names(own, beside=True, bare=True)}
    if names:
        return open_tower(source.path, source.files, {name: plain[key] for name, key in names.items()})
    for folder in (source.path / ENCODER, source.path.parent / ENCODER):
        if weight_folder(folder) is not None:
            files = tensor_files(folder)
            return open_tower(folder, files, tower_names(files, beside=True, bare=True))
    evidence = find_tower_evidence(source.path)
    if evidence is not None:
        raise UserError(
            f"{evidence}, but no vision tower was found among the tensors or in {ENCODER}/. Download it, too; "
            "the vision tower of another model would not match"
        )
    return None


def open_tower(folder: Path, files: Mapping[str, Path], keys: Mapping[str, str]) -> SafetensorsWeights:
    """Returns the weights of a vision tower; raises FileNotFoundError if one of its files does not exist.

    Args:
        folder: Folder of the files, for messages.
        files: Tensor name in the files → file.
        keys: Name within the tower → tensor name in the files.
    """
    for key in keys.values():
        if not files[key].is_file():
            raise FileNotFoundError(
                f"{folder} lacks the weight file {files[key].name}, which contains {key} of the vision tower"
            )
    return SafetensorsWeights(folder, files, Naming("", "vision tower in", keys, lambda config: {}), {})


def tower_names(keys: Iterable[str], *, beside: bool = False, bare: bool = False) -> dict[str, str]:
    """Returns name within the vision tower → tensor name, for those names in `keys` that belong to a vision tower.

    Args:
        keys: Tensor names.
        beside: Whether names with the prefix `vision_encoder.` also count as names of the tower.
        bare: Whether all names without a known prefix also count as names of the tower.
    """
    found = {}
    for key in keys:
        rest = key.removeprefix(f"{ENCODER}.") if beside else key
        inside = TOWER_NAME.fullmatch(rest)
        if inside is not None:
            found[inside["name"]] = key
        elif bare or rest != key:
            found[rest] = key
    return found


def find_tower_evidence(folder: Path) -> str | None:
    """Returns a clause such as "…/config.json states include_visual" if a file refers to a vision tower in `folder`.

    None if neither config.json nor an index file of the weights refers to one.
    """
    config = folder / "config.json"
    if config.is_file() and states_vision_tower(read_json_object(config)):
        return f"{config} states include_visual"
    for index in (place / "model.safetensors.index.json" for place in (folder, folder.parent)):
        if index.is_file() and any(Path(file).parent.name == ENCODER for file in read_weight_map(index).values()):
            return f"{index} lists files in {ENCODER}/"
    return None


def states_vision_tower(config: Any) -> bool:
    if isinstance(config, dict):
        return config.get("include_visual") is True or any(states_vision_tower(value) for value in config.values())
    return isinstance(config, list) and any(states_vision_tower(value) for value in config)
