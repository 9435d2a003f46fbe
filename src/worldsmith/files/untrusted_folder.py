"""Reads model and adapter folders of other programs without running their code or opening files outside of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from worldsmith.files.errors import UserError
from worldsmith.files.json_file import read_json_object, section

ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
"""Attention implementations in transformers itself; any other name is loaded as code from a hub repository."""
ATTENTION_KEYS = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
INDEX_FILES = "*.index.json"
ADAPTER_CONFIG = "adapter_config.json"


def load_from_folder(kind: Any, folder: Path, **options: Any) -> Any:
    """Loads a transformers or diffusers object from a local folder, without network access or remote code.

    Args:
        kind: Class with `from_pretrained`, such as a model or a tokenizer class.
        folder: Local folder.
        options: Further arguments of `from_pretrained`.

    Returns:
        The result of `from_pretrained`.

    Raises:
        UserError: If the folder requires its own code, names attention kernels of the Hugging Face Hub, or lists weight
            files outside of the folder.
        OSError: If `from_pretrained` raises it, such as for a missing file.
        ValueError: If `from_pretrained` raises it, or any exception other than OSError, ImportError, UserError or out
            of memory; the message for such an exception names the folder.
    """
    require_safe(folder)
    try:
        return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False, **options)
    except ValueError as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"{folder}: {kind.__name__} requires code from the folder (auto_map), which is not executed: expected "
                "a class of transformers itself. Use a model that transformers supports without such code"
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
    """Raises UserError if a model folder names attention kernels of the hub or weight files outside of the folder."""
    config = folder / "config.json"
    if config.is_file():
        require_known_attention(read_json_object(config), str(config))
    for index in sorted(folder.glob(INDEX_FILES)):
        listed_files(index)


def require_known_attention(config: Mapping[str, Any], source: str) -> None:
    """Raises UserError if a model config names an attention implementation that would be loaded from the hub.

    Args:
        config: Model config, with nested configs.
        source: File or name of the config, for the message.
    """
    for path, value in attention_settings(config):
        if value is not None and value not in ATTENTION:
            raise UserError(
                f"{source}: {path}: expected one of {', '.join(ATTENTION)}, found {value!r}. Remove it: "
                "transformers would load another attention as code from the hub"
            )


def attention_settings(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the key path and the value of every attention implementation in a config and its nested configs."""
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
    """Returns the names of the weight files that a safetensors index (`*.index.json`) lists.

    Args:
        index: JSON file.

    Returns:
        File names relative to the folder of the index; empty if the file has no `weight_map`.

    Raises:
        UserError: If the index is invalid or empty, or names files outside of its folder.
    """
    return set(read_weight_map(index).values()) if "weight_map" in read_json_object(index) else set()


def read_weight_map(index: Path) -> dict[str, str]:
    """Reads the file name of each tensor from a safetensors index (`*.index.json`).

    Args:
        index: JSON file.

    Returns:
        Tensor name → file name, relative to the folder of the index.

    Raises:
        UserError: If the index is invalid or empty, or names files outside of its folder.
    """
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
    """Returns whether the relative path `name` stays inside its folder on POSIX and Windows.

    Links are not checked, since the Hugging Face cache consists of links.
    """
    paths = PurePosixPath(name), PureWindowsPath(name)
    return bool(paths[0].parts) and "\0" not in name and not any(path.anchor or ".." in path.parts for path in paths)


def is_adapter_folder(folder: str | Path) -> bool:
    """Returns whether a local folder contains a PEFT adapter, which has the file `adapter_config.json`.

    Args:
        folder: Local folder, which need not exist.
    """
    return (Path(folder) / ADAPTER_CONFIG).is_file()


def base_of_adapter(folder: str | Path) -> str:
    """Returns the base model that the `adapter_config.json` of a PEFT adapter names.

    Args:
        folder: Folder of the adapter.

    Returns:
        `org/name[@revision]` or a path; "" if the file names no base model or cannot be read.
    """
    try:
        stated = read_json_object(Path(folder) / ADAPTER_CONFIG)
    except (OSError, UserError):
        return ""
    name, revision = stated.get("base_model_name_or_path"), stated.get("revision")
    if not isinstance(name, str):
        return ""
    return f"{name}@{revision}" if isinstance(revision, str) and not Path(name).is_absolute() else name
