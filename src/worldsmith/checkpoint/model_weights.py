"""A network's weights on disk: in a training checkpoint and in a diffusers folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.checkpointer import POINTER, find_damage, folder_iteration, load_part, stored_shapes
from worldsmith.checkpoint.diffusers_keys import diffusers_to_native, native_to_diffusers
from worldsmith.checkpoint.warm_start import load_weights, plan_loading

if TYPE_CHECKING:
    from torch import Tensor, nn

LIVE, AVERAGE = "net.", "net_ema."
WEIGHTS_NAME = "diffusion_pytorch_model.safetensors"


def latest_checkpoint(checkpoints: Path) -> tuple[Path, list[str]]:
    """The newest complete checkpoint of a run's `checkpoints` folder, and why newer ones were passed over.

    Only reads, so that it may look at a run that is still training. Raises FileNotFoundError when none is complete.
    """
    found = sorted((path for path in checkpoints.glob("iter_*") if path.is_dir()), key=folder_iteration, reverse=True)
    pointer = checkpoints / POINTER
    if pointer.exists():
        named = checkpoints / pointer.read_text(encoding="utf-8").strip()
        found.sort(key=lambda path: path != named)
    problems: list[str] = []
    for candidate in found:
        problem = find_damage(candidate)
        if problem is None:
            return candidate, problems
        problems.append(f"{candidate.name}: {problem}")
    detail = f"; none of these is complete: {'; '.join(problems)}" if problems else ""
    raise FileNotFoundError(f"no checkpoint in {checkpoints}{detail}")


def has_average(checkpoint: Path) -> bool:
    """Whether a checkpoint holds averaged (EMA) weights beside the live ones."""
    return any(name.startswith(AVERAGE) for name in stored_shapes(checkpoint / "model"))


def read_checkpoint_weights(checkpoint: Path, network: nn.Module, *, average: bool) -> None:
    """Fills the network from a training checkpoint, in place. Raises UserError when names or shapes do not fit."""
    prefix = AVERAGE if average else LIVE
    state = {prefix + name: parameter.detach() for name, parameter in network.named_parameters()}
    report = plan_loading(str(checkpoint), {name: list(tensor.shape) for name, tensor in state.items()}, [])
    load_part(report.source, state, no_dist=True)


def read_initial_weights(load_path: str, network: nn.Module, keys_to_skip: list[str]) -> None:
    """Fills the network with what a run was started from, in place; skipped tensors stay as they are."""
    live = {LIVE + name: parameter.detach() for name, parameter in network.named_parameters()}
    load_weights(load_path, live, keys_to_skip=keys_to_skip)


def read_diffusers_weights(folder: Path, network: nn.Module) -> None:
    """Fills the network from a `transformer/` folder of safetensors, in place.

    Raises FileNotFoundError without weight files, ValueError when names or shapes do not fit.
    """
    from safetensors import safe_open

    parameters = dict(network.named_parameters())
    missing = set(parameters)
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 (a safetensors handle, not a dict)
                name = diffusers_to_native(key)
                if name not in parameters:
                    raise ValueError(f"{path} has {key}, which this network does not have")
                copy_weight(parameters[name].detach(), file.get_tensor(key), f"{path}: {key}")
                missing.discard(name)
    if missing:
        examples = ", ".join(sorted(native_to_diffusers(name) for name in missing)[:3])
        raise ValueError(
            f"{folder} lacks {len(missing)} of the network's {len(parameters)} tensors, such as {examples}"
        )


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a diffusers component: one, or the shards that its index names."""
    index = folder / f"{WEIGHTS_NAME}.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [folder / name for name in names]
    else:
        files = [folder / WEIGHTS_NAME]
    absent = [path.name for path in files if not path.is_file()]
    if absent:
        raise FileNotFoundError(f"{folder} lacks the weight file {absent[0]}")
    return files


def copy_weight(target: Tensor, source: Tensor, where: str) -> None:
    if target.shape != source.shape:
        raise ValueError(f"{where} has the shape {list(source.shape)}, the network needs {list(target.shape)}")
    target.copy_(source)
