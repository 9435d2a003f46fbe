"""LoRA files: reads those of diffusers, PEFT, ComfyUI, kohya's trainers and ai-toolkit, and writes those of ComfyUI.

ComfyUI applies alpha / rank only if the file has the tensor `<layer>.alpha`, and reads no header or other file.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.export_folder import (
    ExportSource,
    facts_of,
    may_write,
    new_export,
    state_versions,
    weights_digest,
)
from worldsmith.checkpoint.formats.family_formats import DType, ExportFormat, ExportOptions
from worldsmith.checkpoint.formats.lora_names import PREFIX
from worldsmith.checkpoint.formats.stored_adapter import AdapterLayout, StoredAdapter, layers_of, require_effect
from worldsmith.checkpoint.formats.weight_formats import full_name
from worldsmith.checkpoint.sources.safetensors_weights import open_file
from worldsmith.config.errors import UserError
from worldsmith.files.json_file import are_numbers, json_type
from worldsmith.files.untrusted_folder import ADAPTER_CONFIG
from worldsmith.models.lora import MATRICES, is_adapter
from worldsmith.models.model_files import lasting_name
from worldsmith.models.weights.check_finite import non_finite, require_finite

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.checkpoint.formats.stored_model import StoredModel

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
README = "README.md"
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
        pairs = [pair for layer, parts in layers.items() for pair in split_layer(layout, layer, parts)]
        weights = dict(pairs)
        if len(weights) != len(pairs):
            raise ValueError("several tensors belong to the same matrix of a layer")
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
        is_new = suffix and layout.names.find_layer(layer) and SUFFIXES[suffix] not in layers[layer]
        if is_new and (suffix != ".alpha" or tensor.numel() == 1):
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


def split_layer(layout: AdapterLayout, layer: str, parts: Mapping[int, Tensor]) -> list[tuple[str, Tensor]]:
    """Returns (internal parameter name, matrix) for the matrices of one layer in a LoRA file.

    A layer that the network splits, such as one for Q, K and V, has one matrix A, which each new layer gets, and a
    matrix B whose rows are divided: one block of the input size for each new layer, and the rest for the last one.
    """
    if not {A, B} <= parts.keys():
        raise ValueError(f"'{layer}' has only one of the matrices A and B")
    paths = [layout.inward(f"{path}.weight").removesuffix(".weight") for path in layout.names.find_layer(layer)]
    low, high = parts[A], parts[B]
    if low.ndim != 2 or high.ndim != 2 or len(low) != high.shape[1]:
        found = f"{list(low.shape)} and {list(high.shape)}"
        raise ValueError(f"'{layer}': expected matrices A [rank, in] and B [out, rank], found the shapes {found}")
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
    stated: Any = known.get(f"{part}.lora_alpha", alpha)
    if stated is None and (
        "ai-toolkit" in header.get("software", "") or next(iter(stored)).startswith(("diffusion_model.", "lora_unet_"))
    ):
        return rank
    if stated is None:
        raise UserError(
            f"{file} does not state the alpha of its adapters (64 in CogVideo's finetune/ by default): create an "
            f"adapter folder that states it with `worldsmith convert {file} --to adapter --lora-alpha N -o DIR`"
        )
    if not is_scale(stated):
        raise ValueError(f"alpha is {stated}; expected a number above 0")
    return stated * math.sqrt(rank) if known.get(f"{part}.use_rslora") else stated


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
        raise ValueError("there are no adapters")
    if len(ranks) > 1:
        raise ValueError(f"the adapters have several ranks: {ranks}; expected one")
    return ranks[0]


def require_adapters(model: StoredModel) -> None:
    """Raises ValueError unless `model` is a run's checkpoint that contains LoRA adapters."""
    if not model.has_adapters or model.tree is None:
        raise ValueError(
            f"{model.folder} has no adapters: it was trained without model.lora_enabled, or they are merged"
        )


def read_adapters(model: StoredModel) -> dict[str, Tensor]:
    """Reads the LoRA matrices of a run from disk; returns internal parameter name -> matrix."""
    weights = model.open_adapters()
    return {name: weights.read(name, average=model.average) for name in weights.shapes if is_adapter(name)}


def comfyui_export_of(layout: AdapterLayout, suffix: Callable[[Any], str]) -> ExportFormat:
    """Returns the export format "comfyui" of a model family.

    Args:
        layout: Names of the adapter tensors of the model family.
        suffix: Called with the model config; returns the end of the file name without file extension.
    """
    return ExportFormat(
        "export_comfyui",
        README,
        "LoRA file for ComfyUI",
        partial(export_stored_lora, layout, suffix),
        partial(comfyui_stored_tensors, layout),
        partial(require_names, layout),
        has_weights=False,
        has_caption=True,
    )


def require_names(layout: AdapterLayout, model: StoredModel) -> None:
    """Raises ValueError unless `model` is a LoRA run's checkpoint, and ComfyUI has names for all adapted layers."""
    require_adapters(model)
    for path in layers_of(model.open_adapters().shapes):
        layout.names.comfyui_layer(layout.layer_name(path))


def comfyui_stored_tensors(layout: AdapterLayout, model: StoredModel, options: ExportOptions) -> dict[str, Tensor]:
    """Reads the adapters of a LoRA run; returns tensor name in ComfyUI -> matrix or alpha."""
    return comfyui_tensors(layout, read_adapters(model), model.config.lora_alpha, options.dtype)


def comfyui_tensors(
    layout: AdapterLayout, adapters: Mapping[str, Tensor], alpha: float, dtype: DType
) -> dict[str, Tensor]:
    """Returns the tensors of a LoRA file for ComfyUI, by name: matrices in `dtype`, alpha in float32.

    Args:
        layout: Names of the adapter tensors of the model family.
        adapters: Internal parameter name -> matrix.
        alpha: LoRA alpha.
        dtype: Dtype of the matrices.

    Raises:
        ValueError: If ComfyUI has no name for a layer.
    """
    import torch

    tensors = {}
    for path in layers_of(adapters):
        key = layout.names.comfyui_layer(layout.layer_name(path))
        for matrix in MATRICES:
            tensors[key + matrix] = adapters[path + matrix].cpu().to(getattr(torch, dtype)).contiguous()
        tensors[f"{key}.alpha"] = torch.tensor(float(alpha))
    return tensors


def scaled_tensors(
    layout: AdapterLayout, adapters: Mapping[str, Tensor], scale: float, dtype: DType
) -> dict[str, Tensor]:
    """Returns the tensors of a LoRA file with diffusers' names, in which B is multiplied by alpha / rank.

    Args:
        layout: Names of the adapter tensors of the model family.
        adapters: Internal parameter name -> matrix.
        scale: alpha / rank.
        dtype: Dtype of the matrices.
    """
    import torch

    factors = dict(zip(MATRICES, (1.0, scale), strict=True))
    return {
        f"{layout.part}.{layout.layer_name(path)}{matrix}": (adapters[path + matrix].cpu().float() * factor)
        .to(getattr(torch, dtype))
        .contiguous()
        for path in layers_of(adapters)
        for matrix, factor in factors.items()
    }


def export_stored_lora(
    layout: AdapterLayout, suffix: Callable[[Any], str], model: StoredModel, out: Path, options: ExportOptions
) -> bool:
    """Exports the adapters of a LoRA run as a LoRA file for ComfyUI; reads only the adapters.

    Args:
        layout: Names of the adapter tensors of the model family.
        suffix: Called with the model config; returns the end of the file name without file extension.
        model: Model of the run.
        out: Target folder.
        options: Options of the export.

    Returns:
        Whether the export was written: False if the same export exists already.

    Raises:
        ValueError: If the model was not trained with LoRA, all B matrices are zero, or ComfyUI has no name for a layer.
        UserError: If a matrix is not finite.
        FileExistsError: If `out` contains a different export that may not be replaced, or files that do not belong to
            an export.
    """
    from safetensors.torch import save_file

    require_names(layout, model)
    adapters, alpha = read_adapters(model), model.config.lora_alpha
    require_effect(adapters)
    require_finite(f"the adapters for {out}", non_finite(adapters))
    weights, rank = comfyui_tensors(layout, adapters, alpha, options.dtype), one_rank(adapters)
    base, name = "" if model.start is None else full_name(model.start.path), model.run.rpartition("/")[2] or "lora"
    stem = name + suffix(model.config)
    about = {
        **state_versions("comfyui", "torch"),
        "source": ExportSource(run=model.run, iteration=model.iteration, weights=model.weights).as_data(),
        "base_model": lasting_name(base) if base else "",
        "dtype": options.dtype,
        "rank": rank,
        "alpha": alpha,
        "lora_file": f"{stem}.safetensors",
        "layers": len(layers_of(adapters)),
        "weights_sha256": weights_digest(weights),
        "card": {**facts_of(model), **({"caption": options.caption} if options.caption else {})},
    }
    if not may_write(out, about, options.force, index=README):
        return False
    copy = f"{stem}_{layout.names.scaled_copy}.safetensors" if layout.names.scaled_copy else ""
    with new_export(out, about, partial(comfyui_card, copy), force=options.force) as aside:
        save_file(weights, aside / f"{stem}.safetensors", metadata=comfyui_header(stem, about))
        if copy:
            scaled = scaled_tensors(layout, adapters, alpha / rank, options.dtype)
            save_file(scaled, aside / copy, metadata={"format": "pt"})
    return True


def comfyui_header(title: str, about: Mapping[str, Any]) -> dict[str, str]:
    """Returns the metadata of a LoRA file: `ss_*` and `modelspec.*` keys that file browsers show, and `worldsmith`.

    Args:
        title: Name of the LoRA.
        about: Content of `worldsmith.json`, which becomes the value of `worldsmith`.
    """
    base, caption = about["base_model"], about["card"].get("caption")
    return {
        "format": "pt",
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.title": title,
        **({"modelspec.trigger_phrase": caption} if caption else {}),
        **({"ss_base_model_version": base, "ss_sd_model_name": base} if base else {}),
        "ss_output_name": title,
        "ss_network_dim": str(about["rank"]),
        "ss_network_alpha": str(about["alpha"]),
        "ss_steps": str(about["source"]["iteration"]),
        "worldsmith": json.dumps(about),
    }


def comfyui_card(copy: str, name: str, about: Mapping[str, Any]) -> str:
    """Returns the content of README.md of an export for ComfyUI.

    Args:
        copy: Name of the file with diffusers' names; empty: there is no such file.
        name: Name of the exported folder.
        about: Content of its `worldsmith.json`.
    """
    base, caption = about["base_model"] or "the initial weights of the run", about["card"].get("caption")
    example = f" The captions of the training data are of this kind: `{caption}`" if caption else ""
    other = f" The custom node with diffusers' network loads `{copy}`." if copy else ""
    return (
        f"# {name}\n\nA LoRA (rank {about['rank']}, alpha {about['alpha']}, {about['dtype']}) of {base}. Copy "
        f"`{about['lora_file']}` to `ComfyUI/models/loras` and use strength 1.{other}{example}\n"
    )
