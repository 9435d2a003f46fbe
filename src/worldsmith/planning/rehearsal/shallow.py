"""The same run with fewer repeated layers: what is true of two of them is true of forty."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.files.json_file import read_json_object
from worldsmith.planning.simulation.short_run import COUNTS

if TYPE_CHECKING:
    from worldsmith.training.trainer import Trainer

SELECTED = "deepstack_visual_indexes"
"""Layers of a vision encoder from which the first layers of the language model take something."""
WHOLE = "fullatt_block_indexes"
"""Layers of a vision encoder that attend to a whole frame, where the others attend within windows."""
CONFIG = "config.json"


def shorten(config: Trainer.Config, layers: int, folder: Path) -> Trainer.Config:
    """With at most `layers` of each kind, or what the network cannot do without; itself where it has no more.

    A network that a folder describes is described by another one, which is written into `folder`.
    """
    short: Any = deepcopy(config)
    model = short.model.config
    if hasattr(model, "network"):
        counts = {name: getattr(model.network, name) for name in COUNTS if hasattr(model.network, name)}
        for name, number in counts.items():
            setattr(model.network, name, min(number, layers))
        return short if any(number > layers for number in counts.values()) else config  # type: ignore[no-any-return]
    for field, name, _ in model.named_folders():
        if not (Path(name) / CONFIG).is_file():
            continue
        described = read_json_object(Path(name) / CONFIG)
        fewer = with_fewer(described, layers)
        if fewer != described:
            path, _, leaf = field.removeprefix("model.config.").rpartition(".")
            setattr(attrgetter(path)(model), leaf, str(copied(Path(name), folder / "shallow", fewer)))
            return short  # type: ignore[no-any-return]
    return config


def with_fewer(described: dict[str, Any], layers: int) -> dict[str, Any]:
    """A config of transformers with fewer layers."""
    selected = len((described.get("vision_config") or {}).get(SELECTED) or ())
    return cut(described, max(layers, selected))


def cut(described: dict[str, Any], layers: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in described.items():
        if isinstance(value, dict):
            found[name] = cut(value, layers)
        elif name in COUNTS and isinstance(value, int):
            found[name] = min(value, layers)
        elif name == SELECTED and value:
            found[name] = list(range(len(value)))
        elif name == WHOLE and value:
            found[name] = sorted({min(index, layers - 1) for index in value})
        elif name == "layer_types" and isinstance(value, list):
            found[name] = value[:layers]
        else:
            found[name] = value
    return found


def copied(source: Path, target: Path, described: dict[str, Any]) -> Path:
    """The small files of a model folder, beside another config."""
    target.mkdir()
    for file in source.iterdir():
        if file.is_file() and file.suffix in (".json", ".jinja", ".txt", ".model") and file.name != CONFIG:
            shutil.copyfile(file, target / file.name)
    (target / CONFIG).write_text(json.dumps(described), encoding="utf-8")
    return target
