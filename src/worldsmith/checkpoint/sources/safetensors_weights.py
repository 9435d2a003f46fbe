"""Weights in a folder of safetensors files: a diffusers transformer or pipeline, the native export, a reasoner."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.weight_formats import Naming, describe_readable, find_naming
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.errors import UserError
from worldsmith.files.json_file import read_json_object, read_optional_json
from worldsmith.files.untrusted_folder import read_weight_map
from worldsmith.models.converters.converter import lasting
from worldsmith.models.fill_parameters import fill
from worldsmith.models.parameter_names import WRAPPERS, native_name

if TYPE_CHECKING:
    import torch
    from torch import Tensor

logger = logging.getLogger(__name__)

STEMS = ("diffusion_pytorch_model", "model")
"""File names, without suffix, of the weights in folders of diffusers and transformers."""
TRANSFORMER = "transformer"
REPLICATED = "module."
"""Prefix that DistributedDataParallel adds to every parameter name."""


class SafetensorsWeights(WeightSource):
    """Weights in one or several safetensors files; a rank reads only its shard of each weight."""

    def __init__(self, folder: Path, files: Mapping[str, Path], naming: Naming, settings: dict[str, Any]) -> None:
        self.path, self.family, self.settings = folder, naming.family, settings
        self.describe = f"{naming.describe} {folder}"
        self.files, self.naming, self.keys = files, naming, naming.keys
        self._handles: dict[Path, Any] = {}
        known = {*self.keys.values(), *(key for joined in naming.joined.values() for key in joined.keys)}
        self.unknown = [key for key in files if key not in known]
        self.shapes = {name: self._slice(key).get_shape() for name, key in self.keys.items()}
        self.shapes |= {name: joined.shape for name, joined in naming.joined.items()}
        self.copies = dict(naming.copies)
        self.shapes |= {name: self.shapes[source] for name, source in self.copies.items()}

    def is_optional(self, name: str) -> bool:
        return super().is_optional(name) or (name not in self.shapes and self.naming.lacks(name))

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        from safetensors import SafetensorError

        for name, tensor in tensors.items():
            joined = self.naming.joined.get(name)
            if joined is not None:
                fill(tensor, joined.make({key: self._slice(key)[...] for key in joined.keys}))
                continue
            key = self.keys.get(self.copies.get(name, name))
            if key is None:
                raise KeyError(f"{self.describe} has no weight {name}")
            try:
                fill(tensor, self._slice(key))
            except SafetensorError as error:
                raise UserError(f"{self.files[key]}: {key} cannot be read ({error})") from error

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        import torch

        joined = self.naming.joined.get(name)
        key = self.keys[self.copies.get(name, name)] if joined is None else joined.keys[0]
        stored = self._slice(key).get_dtype()
        names = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
        if stored not in names:
            raise UserError(f"{self.describe}: {name} is stored as {stored}; expected one of {', '.join(names)}")
        return getattr(torch, names[stored])

    def _slice(self, key: str) -> Any:
        from safetensors import SafetensorError

        file = self.files[key]
        try:
            return self._handle(file).get_slice(key)
        except SafetensorError as error:
            index = min(self.path.glob(f"*{INDEX}"), default=self.path)
            raise UserError(f"{file} has no tensor {key}, although {index} lists it") from error

    def _handle(self, file: Path) -> Any:
        if file not in self._handles:
            try:
                self._handles[file] = open_file(file)
            except FileNotFoundError:
                raise FileNotFoundError(
                    f"{self.path} lacks the weight file {file.name}, which its index lists"
                ) from None
        return self._handles[file]


def has_safetensors(root: Path) -> bool:
    """Returns whether the folder `root`, or its subfolder `transformer`, contains safetensors files or their index."""
    return weight_folder(root) is not None


def open_safetensors(root: Path, family: str = "") -> SafetensorsWeights:
    """Opens the weights in a folder of safetensors files. Reads no tensor.

    Args:
        root: Folder with the files, or with the subfolder `transformer` that contains them.
        family: Model family that is tried first, because several may be able to read the folder; "": no preference.

    Raises:
        FileNotFoundError: If a file is missing.
        UserError: If no family has such tensors, or a file is damaged.
    """
    folder = weight_folder(root)
    if folder is None:
        raise FileNotFoundError(f"{root} has no safetensors files")
    files, config = tensor_files(folder), read_optional_json(folder / "config.json")
    try:
        plain = strip_wrappers(files)
        naming = find_naming(plain, config, wanted=family)
    except ValueError as error:
        raise UserError(f"{folder}: {error}") from error
    if naming is None:
        examples = ", ".join(sorted(files)[:3])
        raise UserError(
            f"{folder}: the tensors ({len(files)}, such as {examples}) do not belong to a known model; expected a "
            f"native export, or {describe_readable()}"
        )
    naming = replace(naming, keys={name: plain[key] for name, key in naming.keys.items()})
    wrappers = find_wrappers(naming.keys.values())
    if wrappers:
        logger.warning(
            "%s: the tensor names contain the prefix %s of a wrapped model, which is ignored",
            folder,
            " and ".join(wrappers),
        )
    source = SafetensorsWeights(folder, files, naming, read_network_settings(folder, naming))
    source.converters = lasting(config.get("model"))
    return source


def strip_wrappers(files: Iterable[str]) -> dict[str, str]:
    """Returns tensor name without prefixes of wrappers, such as `module.` of DDP → tensor name in the file.

    Args:
        files: Tensor names in the files.

    Raises:
        ValueError: If a tensor exists both with and without such a prefix.
    """
    keys: dict[str, str] = {}
    for key in files:
        plain = native_name(key).removeprefix(REPLICATED)
        if plain in keys:
            raise ValueError(f"{keys[plain]} and {key} are the same tensor, {plain}, with and without a wrapper prefix")
        keys[plain] = key
    return keys


def find_wrappers(keys: Iterable[str]) -> list[str]:
    """Returns the prefixes of wrappers, such as `module.` of DDP, that occur in the tensor names `keys`."""
    keys = list(keys)
    found = [wrapper for wrapper in WRAPPERS if any(wrapper in key for key in keys)]
    return found + [REPLICATED] * any(native_name(key).startswith(REPLICATED) for key in keys)


def weight_folder(root: Path) -> Path | None:
    """Returns the folder with safetensors weights: `root/transformer`, else `root`; None if neither has any."""
    for folder in (root / TRANSFORMER, root):
        if any((folder / f"{stem}{suffix}").is_file() for stem in STEMS for suffix in (".safetensors", INDEX)):
            return folder
    return None


INDEX = ".safetensors.index.json"


def tensor_files(folder: Path) -> dict[str, Path]:
    """Returns tensor name -> safetensors file in `folder`; raises FileNotFoundError if a file is missing."""
    for stem in STEMS:
        index = folder / f"{stem}{INDEX}"
        if index.is_file():
            weight_map = read_weight_map(index)
            absent = sorted({name for name in weight_map.values() if not (folder / name).is_file()})
            # A whole repository's index also lists other components, which may be missing in the download.
            absent = [name for name in absent if Path(name).parent.name in ("", TRANSFORMER)]
            if absent:
                raise FileNotFoundError(f"{folder} lacks the weight file {absent[0]}, which {index.name} lists")
            return {key: folder / name for key, name in weight_map.items()}
        file = folder / f"{stem}.safetensors"
        if file.is_file():
            with open_file(file) as handle:
                return dict.fromkeys(handle.keys(), file)
    raise FileNotFoundError(f"{folder} has no safetensors files")


def open_file(file: Path) -> Any:
    """Opens a safetensors file and returns the handle of `safe_open`.

    Raises OSError if the file cannot be read, UserError if it is damaged or not a safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    file.open("rb").close()  # safetensors reports every file that it cannot open as missing
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise UserError(f"{file} is damaged or not a safetensors file ({error})") from error


def read_network_settings(folder: Path, naming: Naming) -> dict[str, Any]:
    """Returns the network settings (field name -> value) in the config.json next to the weights; may be empty.

    Args:
        folder: Folder with the weights.
        naming: Names of the tensors in the folder, which determine how its config is read.

    Raises:
        UserError: If the config is invalid or contradictory.
    """
    for file in (folder / "config.json", folder / TRANSFORMER / "config.json"):
        if file.is_file():
            config = read_json_object(file)
            try:
                settings = naming.read_config(config)
            except (ValueError, TypeError) as error:
                raise UserError(f"{file}: {error}") from error
            if settings:
                return settings
    return {}
