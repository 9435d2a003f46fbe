"""Model and adapter folders of other programs, read without running code from them or opening files outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from worldsmith.files.errors import UserError
from worldsmith.files.json_file import read_json_object, section

ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
"""Implementations in transformers itself; it loads any other name as code from a hub repository."""
ATTENTION_KEYS = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
INDEX_FILES = "*.index.json"
ADAPTER_CONFIG = "adapter_config.json"


def load_from_folder(kind: Any, folder: Path, **options: Any) -> Any:
    """Calls `kind.from_pretrained` of a transformers or diffusers class on a local folder.

    Raises:
        UserError: If the folder requires its own code, or names kernels or files outside of it.
        OSError: As the library.
        ValueError: As the library, and instead of its other exceptions about files, with the folder.
    """
    require_safe(folder)
    try:
        return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False, **options)
    except ValueError as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"{folder}: {kind.__name__} needs code from the folder (auto_map), which is not executed: expected "
                "a class of transformers itself; use a model that transformers supports without such code"
            ) from error
        raise
    except (OSError, MemoryError, ImportError, UserError):  # about a file, which it names, or about the machine
        raise
    except Exception as error:  # each class of the libraries has exceptions of its own
        if type(error).__name__ == "OutOfMemoryError":
            raise
        words = " ".join(str(error).split())
        raise ValueError(
            f"{folder}: {kind.__name__} cannot read the files of this folder: {type(error).__name__}: {words}. "
            "Copy the folder again"
        ) from error


def require_safe(folder: Path) -> None:
    """Raises UserError for a config.json that names kernels, and for an index that names files outside the folder."""
    config = folder / "config.json"
    if config.is_file():
        require_known_attention(read_json_object(config), str(config))
    for index in sorted(folder.glob(INDEX_FILES)):
        listed_files(index)


def require_known_attention(config: Mapping[str, Any], source: str) -> None:
    """Raises UserError for a config, read from `source`, with another attention than those of transformers itself."""
    for path, value in attention_settings(config):
        if value is not None and value not in ATTENTION:
            raise UserError(
                f"{source}: {path}: expected one of {', '.join(ATTENTION)}, found {value!r}. Remove it: "
                "transformers would load another attention as code from the hub"
            )


def attention_settings(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields path and value of every attention implementation in a config."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from attention_settings(item, f"{path}[{index}]")
    if not isinstance(node, Mapping):
        return
    for key, value in node.items():
        here = f"{path}.{key}" if path else str(key)
        if key in ATTENTION_KEYS:
            named = value.items() if isinstance(value, Mapping) else [("", value)]
            yield from ((f"{here}.{name}" if name else here, one) for name, one in named)
        else:
            yield from attention_settings(value, here)


def listed_files(index: Path) -> set[str]:
    """Returns the names of the weight files that an index lists; empty for another JSON file.

    Raises like `read_weight_map`.
    """
    return set(read_weight_map(index).values()) if "weight_map" in read_json_object(index) else set()


def read_weight_map(index: Path) -> dict[str, str]:
    """Returns tensor name → file name. Raises UserError if the index is invalid or names files outside of its
    folder."""
    data = read_json_object(index)
    try:
        weight_map = section(data, "weight_map")
    except ValueError as error:
        raise UserError(f"{index}: {error}") from error
    wrong = next((name for name, file in weight_map.items() if not isinstance(file, str)), None)
    if wrong is not None or not weight_map:
        what = "nothing" if wrong is None else f"{weight_map[wrong]!r} for {wrong}"
        raise UserError(f"{index}: weight_map: expected an object that names the file of every tensor, found {what}")
    outside = next((name for name, file in weight_map.items() if not is_inside(file)), None)
    if outside is not None:
        raise UserError(
            f"{index}: weight_map: expected files in the folder of the index, found {weight_map[outside]!r} for "
            f"{outside}. Download the model again, or correct the index"
        )
    return weight_map


def is_inside(name: str) -> bool:
    """Returns whether a relative path stays in its folder, on every system; links are followed, as the Hugging Face
    cache has them."""
    paths = PurePosixPath(name), PureWindowsPath(name)
    return bool(paths[0].parts) and "\0" not in name and not any(path.anchor or ".." in path.parts for path in paths)


def is_adapter_folder(folder: str | Path) -> bool:
    """Returns whether a local folder holds adapters in PEFT's format."""
    return (Path(folder) / ADAPTER_CONFIG).is_file()


def base_of_adapter(folder: str | Path) -> str:
    """Returns the base model that the adapters' own files name, as `org/name[@revision]` or a path; "" = they name
    none."""
    try:
        stated = read_json_object(Path(folder) / ADAPTER_CONFIG)
    except (OSError, UserError):
        return ""
    name, revision = stated.get("base_model_name_or_path"), stated.get("revision")
    if not isinstance(name, str):
        return ""
    return f"{name}@{revision}" if isinstance(revision, str) and not Path(name).is_absolute() else name
