"""LoRA adapters as a folder in the format of PEFT, for the model of another library: export and import."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.export_folder import (
    ExportSource,
    facts_of,
    may_write,
    new_export,
    robots_of,
    state_versions,
    weights_digest,
)
from worldsmith.checkpoint.formats.family_formats import DType, ExportFormat, ExportOptions, FamilyFormats, formats_of
from worldsmith.checkpoint.formats.lora_file import (
    DIFFUSERS_HEADER,
    PIPELINE_WEIGHTS,
    find_lora_file,
    is_scale,
    one_rank,
    read_adapters,
    read_lora_file,
    require_adapters,
)
from worldsmith.checkpoint.formats.stored_adapter import PREFIX, AdapterLayout, StoredAdapter, require_effect
from worldsmith.checkpoint.formats.weight_formats import full_name
from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT
from worldsmith.checkpoint.sources.safetensors_weights import open_file
from worldsmith.checkpoint.sources.verify import require_intact
from worldsmith.config.errors import UserError
from worldsmith.distributed.world import World
from worldsmith.files.json_file import read_json_object
from worldsmith.files.untrusted_folder import ADAPTER_CONFIG
from worldsmith.models.lora import MATRICES, adapter_state, inject_adapters
from worldsmith.models.model_files import hub_name, is_local, lasting_name
from worldsmith.models.weights.check_finite import non_finite, require_finite

if TYPE_CHECKING:
    from torch import Tensor, nn

    from worldsmith.checkpoint.formats.stored_model import StoredModel

CONFIG, WEIGHTS = ADAPTER_CONFIG, "adapter_model.safetensors"
BASE_WEIGHTS = "base_weights"
"""Key in `worldsmith.json` that states which weights of the base model the adapters belong to: "ema" (EMA weights) or
"live" (raw weights); raw weights if the key is missing."""
UNSUPPORTED = (
    *("use_dora", "use_qalora", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias"),
    *("bias", "fan_in_fan_out", "layer_replication", "alora_invocation_tokens"),
)
"""Keys of `adapter_config.json` (other than `"bias": "none"`) that change the computation and are not supported."""
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of `init_lora_weights` (also with a suffix, such as `pissa_niter_4`) for which PEFT changes the base weights
before training: with the original base such adapters give another model."""


class AdapterFormats(FamilyFormats):
    """Base class of the formats of families with LoRA adapters in PEFT's format."""

    adapter_layout: AdapterLayout
    """Names of the adapter tensors."""

    def read_adapter(self, folder: Path) -> StoredAdapter:
        return read_adapter(self.adapter_layout, folder)

    def load_adapter(self, network: nn.Module, folder: Path) -> list[str]:
        return load_adapter(self.adapter_layout, network, folder)


def diffusers_header(config: Mapping[str, Any], prefix: str = PREFIX) -> dict[str, str]:
    """Returns the safetensors metadata of an adapter file for diffusers: one key with rank, alpha and layers as JSON.

    There is only one key because safetensors writes several keys in random order.

    Args:
        config: Content of `adapter_config.json`.
        prefix: Prefix of the tensor names in the file.
    """
    known = {f"{prefix}.{key}": config[key] for key in ("r", "lora_alpha", "target_modules")}
    return {DIFFUSERS_HEADER: json.dumps(known)}


def export_of(layout: AdapterLayout) -> ExportFormat:
    """Returns the export format "adapter" (a PEFT folder) of a family with the given names of adapter tensors."""
    return ExportFormat(
        "export_adapter",
        CONFIG,
        "adapter",
        partial(export_stored_adapter, layout),
        partial(stored_tensors, layout),
        require_adapters,
        of_library=True,
        has_weights=False,
    )


def export_stored_adapter(layout: AdapterLayout, model: StoredModel, out: Path, options: ExportOptions) -> bool:
    """Exports the adapters of a LoRA run as a PEFT folder; reads only the adapters.

    Args:
        layout: Names of the adapter tensors of the model family.
        model: Model of the run.
        out: Target folder.
        options: Options of the export.

    Returns:
        Whether the export was written: False if the same export exists already.

    Raises:
        ValueError: If the model was not trained with LoRA, or all B matrices are zero.
        UserError: If a matrix is not finite.
        FileExistsError: If `out` contains a different export that may not be replaced, or files that do not belong to
            an export.
    """
    require_adapters(model)
    return export_adapter(
        layout,
        read_adapters(model),
        out,
        alpha=model.config.lora_alpha,
        dropout=model.config.lora_dropout,
        base_model="" if model.start is None else model.start.path,
        average_of_base=bool((model.tree or {}).get("checkpoint", {}).get("load_ema_to_reg")),
        source=ExportSource(model.run, model.iteration, model.weights, robots=robots_of(model)),
        defaults=model.defaults,
        card=facts_of(model),
        dtype=options.dtype,
        force=options.force,
    )


def stored_tensors(layout: AdapterLayout, model: StoredModel, options: ExportOptions) -> dict[str, Tensor]:
    """Reads the adapters of a LoRA run; returns tensor name in PEFT -> matrix in the dtype of `options`."""
    return named_adapters(layout, read_adapters(model), options.dtype)


def export_adapter(
    layout: AdapterLayout,
    adapters: Mapping[str, Tensor],
    out: str | Path,
    *,
    alpha: float,
    dropout: float = 0.0,
    base_model: str = "",
    average_of_base: bool = False,
    source: ExportSource | None = None,
    defaults: Any = None,
    card: Mapping[str, Any] | None = None,
    dtype: DType = "float32",
    force: bool = False,
) -> bool:
    """Writes LoRA adapters as a PEFT folder, which appears only when complete.

    Args:
        layout: Names of the adapter tensors of the model family.
        adapters: Internal parameter name -> matrix.
        out: Target folder.
        alpha: LoRA alpha.
        dropout: LoRA dropout in training.
        base_model: Path or Hub name of the base model; "": not known.
        average_of_base: Whether the adapters belong to the EMA weights of the base model.
        source: Run and step that the adapters come from; None: not known.
        defaults: Default generation settings to store, a dataclass of the model family; None: none are stored.
        card: Facts for the model card, with the keys "data", "clips" and "windows" (see `facts_of`); None: no facts.
        dtype: Dtype of the stored matrices.
        force: Whether a different export in `out` is replaced. Files that do not belong to an export never are.

    Returns:
        Whether the export was written: False if the same export exists already.

    Raises:
        ValueError: If there are no adapters or all B matrices are zero.
        UserError: If a matrix is not finite.
        FileExistsError: If `out` contains a different export that may not be replaced, or files that do not belong to
            an export.
    """
    from safetensors.torch import save_file

    out, base_model = Path(out), full_name(base_model)
    config = adapter_config(layout, adapters, alpha, base_model, dropout)
    require_effect(adapters)
    require_finite(f"the adapters for {out}", non_finite(adapters))
    weights = named_adapters(layout, adapters, dtype)
    about = {
        **state_versions("adapter", "torch", layout.library, "peft"),
        "source": (source or ExportSource()).as_data(),
        "base_model": lasting_name(base_model) if base_model else "",
        "dtype": dtype,
        "rank": config["r"],
        "alpha": alpha,
        "layers": len(config["target_modules"]),
        "weights_sha256": weights_digest(weights),
        "generation": {} if defaults is None else asdict(defaults),
        "card": dict(card or {}),
        **({BASE_WEIGHTS: "ema"} if average_of_base else {}),
    }
    if not may_write(out, about, force, index=CONFIG):
        return False
    with new_export(out, about, formats_of(layout.family).card, force=force) as aside:
        save_file(weights, aside / WEIGHTS, metadata=layout.header(config) or {"format": "pt"})
        if layout.part:
            of_part = {layout.part + name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
            save_file(of_part, aside / PIPELINE_WEIGHTS, metadata=diffusers_header(config, layout.part))
        (aside / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return True


def named_adapters(layout: AdapterLayout, adapters: Mapping[str, Tensor], dtype: DType) -> dict[str, Tensor]:
    """Returns tensor name in PEFT -> matrix in `dtype` on the CPU, from internal parameter name -> matrix."""
    import torch

    target = getattr(torch, dtype)
    return {layout.peft_name(name): tensor.cpu().to(target).contiguous() for name, tensor in adapters.items()}


def adapter_config(
    layout: AdapterLayout, adapters: Mapping[str, Tensor], alpha: float, base_model: str, dropout: float = 0.0
) -> dict[str, Any]:
    """Returns the content of `adapter_config.json`; `target_modules` lists the full path of each layer in the library.

    Args:
        layout: Names of the adapter tensors of the model family.
        adapters: Internal parameter name -> matrix.
        alpha: LoRA alpha.
        base_model: Path or Hub name of the base model; "": not known.
        dropout: LoRA dropout in training.
    """
    layers = [name.removesuffix(MATRICES[0]) for name in adapters if name.endswith(MATRICES[0])]
    return {
        "peft_type": "LORA",
        **base_in_peft(base_model),
        "r": one_rank(adapters),
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "bias": "none",
        "target_modules": [layout.layer_name(path) for path in layers],
        "inference_mode": True,
    }


def base_in_peft(base_model: str) -> dict[str, Any]:
    """Returns the keys of `adapter_config.json` that name the base model: path, or Hub repository and revision."""
    hub = None if is_local(base_model) else hub_name(base_model)
    if hub is None:
        return {"base_model_name_or_path": lasting_name(base_model) if base_model else None}
    return {"base_model_name_or_path": hub.repo, **({"revision": hub.revision} if hub.revision else {})}


def read_adapter(layout: AdapterLayout, folder: str | Path) -> StoredAdapter:
    """Reads LoRA adapters from a PEFT folder, or from a LoRA file of diffusers, ComfyUI or another trainer.

    Args:
        layout: Names of the adapter tensors of the model family.
        folder: Adapter folder, or file.

    Raises:
        FileNotFoundError: If a file is missing.
        UserError: If a file is damaged or has invalid values.
        ValueError: If the adapter is not plain LoRA (another method, a rank or scale per layer, biases) or belongs to
            another network.
    """
    folder = Path(folder)
    file = find_lora_file(folder)
    if file is not None:
        return read_lora_file(layout, file)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} has no {name}; expected an adapter folder in PEFT format")
    if (folder / ABOUT).is_file():
        require_intact(folder, World())
    config = read_json_object(folder / CONFIG)
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{folder / CONFIG}: peft_type is {config.get('peft_type')!r}; only LORA is supported")
    for key in ("r", "lora_alpha"):
        if key not in config:
            raise ValueError(f"{folder / CONFIG} has no {key}")
    rank, alpha = config["r"], config["lora_alpha"]
    if type(rank) is not int or rank < 1:
        raise UserError(f"{folder / CONFIG}: r: expected an integer above 0, found {rank!r}")
    if not is_scale(alpha):
        raise UserError(f"{folder / CONFIG}: lora_alpha: expected a number above 0, found {alpha!r}")
    for key in UNSUPPORTED:
        if config.get(key) and not (key == "bias" and config[key] == "none"):
            raise ValueError(f"{folder / CONFIG}: {key} = {config[key]!r} is not supported; only plain LoRA is")
    initial = str(config.get("init_lora_weights")).lower()
    if initial.startswith(CHANGES_BASE):
        raise ValueError(
            f"{folder / CONFIG}: init_lora_weights = {config['init_lora_weights']!r} is not supported: PEFT has "
            "changed the base weights, so these adapters do not match the original base. Save them again with "
            "PEFT's save_pretrained(…, path_initial_model_for_weight_conversion=…), which converts them to plain "
            "LoRA"
        )
    try:
        with open_file(folder / WEIGHTS) as file:
            weights = {layout.native_adapter_name(name): file.get_tensor(name) for name in sorted(file.keys())}
    except ValueError as error:
        raise ValueError(f"{folder / WEIGHTS}: {error}") from error
    if config.get("use_rslora"):  # the scale is alpha / sqrt(r)
        alpha *= math.sqrt(rank)
    return StoredAdapter(folder, rank, alpha, weights)


def load_adapter(layout: AdapterLayout, network: nn.Module, folder: str | Path) -> list[str]:
    """Loads LoRA adapters from a folder or file into a network, in place; all other parameters are frozen.

    Args:
        layout: Names of the adapter tensors of the model family.
        network: Network without adapters.
        folder: PEFT adapter folder, or LoRA file.

    Returns:
        Paths of the adapted layers.

    Raises:
        FileNotFoundError: If a file is missing.
        UserError: If a file is damaged or has invalid values.
        ValueError: If the adapter is not plain LoRA, or its names or shapes do not match the network.
    """
    stored = read_adapter(layout, folder)
    targets = ",".join(stored.layers)
    injected = inject_adapters(network, rank=stored.rank, alpha=stored.alpha, target_modules=targets)
    target = adapter_state(network)
    for name, tensor in target.items():
        if name not in stored.weights:
            raise ValueError(f"{stored.folder} lacks {layout.peft_name(name)}")
        if stored.weights[name].shape != tensor.shape:
            found, needed = list(stored.weights[name].shape), list(tensor.shape)
            raise ValueError(f"{stored.folder}: {layout.peft_name(name)} has the shape {found}, expected {needed}")
        tensor.copy_(stored.weights[name])
    return injected
