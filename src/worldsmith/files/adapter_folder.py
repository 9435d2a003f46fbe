"""Folders with adapters in PEFT's format, and the base model that they name."""

from __future__ import annotations

from pathlib import Path

from worldsmith.files.errors import UserError
from worldsmith.files.json_file import read_json_object

ADAPTER_CONFIG = "adapter_config.json"


def is_adapter_folder(folder: str | Path) -> bool:
    """Whether a local folder holds adapters in PEFT's format."""
    return (Path(folder) / ADAPTER_CONFIG).is_file()


def base_of_adapter(folder: str | Path) -> str:
    """The base model that the adapters' own files name, as `org/name[@revision]` or a path; "" = they name none."""
    try:
        stated = read_json_object(Path(folder) / ADAPTER_CONFIG)
    except (OSError, UserError):
        return ""
    name, revision = stated.get("base_model_name_or_path"), stated.get("revision")
    if not isinstance(name, str):
        return ""
    return f"{name}@{revision}" if isinstance(revision, str) and not Path(name).is_absolute() else name
