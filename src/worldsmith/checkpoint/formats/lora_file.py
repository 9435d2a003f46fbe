"""Reads LoRA files of diffusers, PEFT, ComfyUI, kohya's trainers and ai-toolkit: layers, rank and alpha."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.stored_adapter import PREFIX, AdapterLayout, StoredAdapter
from worldsmith.checkpoint.sources.safetensors_weights import open_file
from worldsmith.config.errors import UserError
from worldsmith.files.json_file import are_numbers, json_type
from worldsmith.files.untrusted_folder import ADAPTER_CONFIG
from worldsmith.models.lora import MATRICES

if TYPE_CHECKING:
    from torch import Tensor

PIPELINE_WEIGHTS = "pytorch_lora_weights.safetensors"
"""File that `load_lora_weights` of a diffusers pipeline reads; tensor names begin with the adapted component's name."""
DIFFUSERS_HEADER = "lora_adapter_metadata"
"""Key of the adapter metadata in a safetensors header of diffusers: JSON whose keys have the tensor names' prefix."""
A, B, ALPHA = range(3)
SUFFIXES = {
    **{".lora_A.weight": A, ".lora_B.weight": B, ".lora_A.default.weight": A, ".lora_B.default.weight": B},
    **{".lora_down.weight": A, ".lora_up.weight": B, ".lora.down.weight": A, ".lora.up.weight": B, ".alpha": ALPHA},
}
"""End of a tensor name → matrix A, matrix B or alpha of the layer."""
SHOWN = 3
"""Max number of names in a message."""


class UnknownTensorsError(ValueError):
    """Error: `count` tensors of a LoRA file have no place in a network."""

    def __init__(self, message: str, count: int) -> None:
        super().__init__(message)
        self.count = count


def find_lora_file(path: Path) -> Path | None:
    """Finds a LoRA file: `path` itself, or the one for diffusers' `load_lora_weights` in the folder `path`.

    Returns None if there is no such file, or if `path` is a PEFT adapter folder.
    """
    if path.is_file():
        return path if path.suffix == ".safetensors" else None
    file = path / PIPELINE_WEIGHTS
    return file if file.is_file() and not (path / ADAPTER_CONFIG).is_file() else None


def read_lora_file(layout: AdapterLayout, file: Path, alpha: float | None = None) -> StoredAdapter:
    """Reads the adapters in a LoRA file of any supported program.

    Args:
        layout: Names of the adapter tensors of the model family.
        file: Safetensors file.
        alpha: LoRA alpha for a file that does not state it; None: such a file is an error.

    Raises:
        UserError: If the file is damaged, or alpha is not known.
        ValueError: If the file belongs to another network, has several ranks or alphas, or is not plain LoRA.
    """
    with open_file(file) as opened:
        header = opened.metadata() or {}
        stored = {name: opened.get_tensor(name) for name in sorted(opened.keys())}
    try:
        layers = group_by_layer(layout, stored)
        weights = {name: matrix for layer, parts in layers.items() for name, matrix in split(layout, layer, parts)}
        rank = one_rank(weights)
        stated = {float(parts[ALPHA]) for parts in layers.values() if ALPHA in parts}
        if len(stated) != 1 or not all(ALPHA in parts for parts in layers.values()):
            if stated:
                raise ValueError(f"expected one alpha for all layers, found {sorted(stated)} or none in a layer")
            stated = {find_alpha(layout, file, header, stored, rank, alpha)}
        (found,) = stated
        if not is_scale(found):
            raise ValueError(f"alpha is {found}; expected a number above 0")
        return StoredAdapter(file, rank, int(found) if found == int(found) else found, weights)
    except UnknownTensorsError as error:
        raise UnknownTensorsError(f"{file}: {error}", error.count) from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def group_by_layer(layout: AdapterLayout, stored: Mapping[str, Tensor]) -> dict[str, dict[int, Tensor]]:
    """Returns the layers of a LoRA file: name in the file → matrix A, matrix B and alpha, if the file states it.

    Raises ValueError with a list of the tensors that are not those of a LoRA of the model family.
    """
    layers: dict[str, dict[int, Tensor]] = defaultdict(dict)
    unknown = []
    for name, tensor in stored.items():
        suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
        layer = name.removesuffix(suffix)
        if suffix and layout.names.find_layer(layer):
            layers[layer][SUFFIXES[suffix]] = tensor
        else:
            unknown.append(name)
    if unknown:
        shown = ", ".join(unknown[:SHOWN]) + ", …" * (len(unknown) > SHOWN)
        raise UnknownTensorsError(
            f"{len(unknown)} of {len(stored)} tensors are not those of a LoRA for a {layout.family} network: {shown}. "
            "Expected only matrices A and B (or lora_down and lora_up) and alpha of layers of the network, without a "
            "text encoder; LoHa, LoKr and DoRA are not supported",
            len(unknown),
        )
    return layers


def split(layout: AdapterLayout, layer: str, parts: Mapping[int, Tensor]) -> list[tuple[str, Tensor]]:
    """Returns (internal parameter name, matrix) for the matrices of one layer in a LoRA file.

    A layer that the network splits, such as one for Q, K and V, has one matrix A, which each new layer gets, and a
    matrix B whose rows are divided: one block of the input size for each new layer, and the rest for the last one.
    """
    if not {A, B} <= parts.keys():
        raise ValueError(f"'{layer}' has only one of the matrices A and B")
    paths = [layout.inward(f"{path}.weight").removesuffix(".weight") for path in layout.names.find_layer(layer)]
    low, high = parts[A], parts[B]
    sizes = [low.shape[1]] * (len(paths) - 1)
    if len(high) < sum(sizes):
        raise ValueError(f"'{layer}': B has {len(high)} rows, expected more than {sum(sizes)}")
    rows = high.split([*sizes, len(high) - sum(sizes)])
    pairs = [(path, low, part.contiguous()) for path, part in zip(paths, rows, strict=True)]
    return [(path + end, matrix) for path, *two in pairs for end, matrix in zip(MATRICES, two, strict=True)]


def find_alpha(
    layout: AdapterLayout,
    file: Path,
    header: Mapping[str, str],
    stored: Mapping[str, Tensor],
    rank: int,
    alpha: float | None,
) -> float:
    """Returns the alpha of a LoRA file that has no alpha per layer.

    diffusers stores it in the header. ai-toolkit trains with alpha = rank, and all readers of files with names of the
    original code assume it. For other files it is the given `alpha`.

    Args:
        layout: Names of the adapter tensors of the model family.
        file: Safetensors file, for messages.
        header: Metadata in the file.
        stored: Tensors by name in the file.
        rank: LoRA rank.
        alpha: LoRA alpha of a file that does not state it; None: such a file is an error.

    Raises:
        UserError: If the header is invalid, or alpha is not known.
        ValueError: If the header states several ranks or alphas.
    """
    try:
        known = json.loads(header.get(DIFFUSERS_HEADER, "{}"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: {DIFFUSERS_HEADER} in its header is not valid JSON: {error}") from error
    if not isinstance(known, dict):
        raise UserError(f"{file}: {DIFFUSERS_HEADER} in its header: expected an object, found {json_type(known)}")
    part = layout.part or PREFIX
    if known.get(f"{part}.rank_pattern") or known.get(f"{part}.alpha_pattern"):
        raise ValueError("several ranks or alphas are not supported; expected one rank and one alpha for all layers")
    found: Any = known.get(f"{part}.lora_alpha", alpha)
    if found is None and (
        "ai-toolkit" in header.get("software", "") or next(iter(stored)).startswith(("diffusion_model.", "lora_unet_"))
    ):
        return rank
    if found is None:
        raise UserError(
            f"{file} does not state the alpha of its adapters (64 in CogVideo's finetune/ by default): create an "
            f"adapter folder that states it with `worldsmith convert {file} --to adapter --lora-alpha N -o DIR`"
        )
    if not is_scale(found):
        raise ValueError(f"alpha is {found}; expected a number above 0")
    return found * math.sqrt(rank) if known.get(f"{part}.use_rslora") else found


def is_scale(alpha: Any) -> bool:
    """Returns whether `alpha` is valid as `lora_alpha`: a finite number above 0."""
    return are_numbers([alpha], above=0)


def one_rank(adapters: Mapping[str, Tensor]) -> int:
    """Returns the LoRA rank of `adapters` (internal parameter name -> matrix).

    Raises:
        ValueError: If there are no adapters, or adapters of several ranks.
    """
    ranks = sorted({len(tensor) for name, tensor in adapters.items() if name.endswith(MATRICES[0])})
    if not ranks:
        raise ValueError("there are no adapters to export")
    if len(ranks) > 1:
        raise ValueError(f"the adapters have several ranks: {ranks}; expected one")
    return ranks[0]
