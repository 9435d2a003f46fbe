"""Export format "comfyui": the adapters of a LoRA run as one file for ComfyUI's LoRA loader.

ComfyUI applies alpha / rank only if the file has the tensor `<layer>.alpha`, and reads no header or other file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
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
from worldsmith.checkpoint.formats.lora_file import one_rank
from worldsmith.checkpoint.formats.peft_adapter import read_adapters, require_adapters, require_effect
from worldsmith.checkpoint.formats.stored_adapter import AdapterLayout, layers_of
from worldsmith.checkpoint.formats.weight_formats import full_name
from worldsmith.models.lora import MATRICES
from worldsmith.models.model_files import lasting_name
from worldsmith.models.weights.check_finite import non_finite, require_finite

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.checkpoint.formats.stored_model import StoredModel

README = "README.md"


def export_of(layout: AdapterLayout, suffix: Callable[[Any], str]) -> ExportFormat:
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
        partial(stored_tensors, layout),
        partial(require_names, layout),
        has_weights=False,
        has_caption=True,
    )


def require_names(layout: AdapterLayout, model: StoredModel) -> None:
    """Raises ValueError unless `model` is a LoRA run's checkpoint, and ComfyUI has names for all adapted layers."""
    require_adapters(model)
    for path in layers_of(model.open_adapters().shapes):
        layout.names.comfyui_layer(layout.layer_name(path))


def stored_tensors(layout: AdapterLayout, model: StoredModel, options: ExportOptions) -> dict[str, Tensor]:
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
        "source": asdict(ExportSource(run=model.run, iteration=model.iteration, weights=model.weights)),
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
    with new_export(out, about, partial(card, copy), force=options.force) as aside:
        save_file(weights, aside / f"{stem}.safetensors", metadata=file_header(stem, about))
        if copy:
            scaled = scaled_tensors(layout, adapters, alpha / rank, options.dtype)
            save_file(scaled, aside / copy, metadata={"format": "pt"})
    return True


def file_header(title: str, about: Mapping[str, Any]) -> dict[str, str]:
    """Returns the metadata of a LoRA file: `ss_*` and `modelspec.*` keys that file browsers show, and `worldsmith`.

    Args:
        title: Name of the LoRA.
        about: Content of `worldsmith.json`, which becomes the value of `worldsmith`.
    """
    caption = about["card"].get("caption", "")
    return {
        "format": "pt",
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.title": title,
        **({"modelspec.trigger_phrase": caption} if caption else {}),
        "ss_output_name": title,
        "ss_base_model_version": about["base_model"],
        "ss_sd_model_name": about["base_model"],
        "ss_network_dim": str(about["rank"]),
        "ss_network_alpha": str(about["alpha"]),
        "ss_steps": str(about["source"]["iteration"]),
        "worldsmith": json.dumps(about),
    }


def card(copy: str, name: str, about: Mapping[str, Any]) -> str:
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
