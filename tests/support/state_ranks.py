"""What the processes of tiny runs really hold, and what their checkpoints do: `launch` runs `state_ranks.py WORLDS OUT
CASE…`.

Each case takes a step and saves; each rank writes what it found to OUT/<case>.<rank>.json.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pipeline_runs
import pytest
import reasoner_runs
import tiny_runs
import torch
from imported_once import import_for_videos
from launch import fork_ranks
from torch.distributed.fsdp import FSDPModule

from worldsmith.checkpoint.dcp.tensor_reader import read_entries
from worldsmith.config.sections import ParallelismConfig
from worldsmith.distributed.degrees import plan_degrees
from worldsmith.distributed.world import stop_world
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.weights.weight_table import weight_table
from worldsmith.training import step as steps
from worldsmith.training.state_bytes import checkpoint_bytes, state_bytes
from worldsmith.training.trainer import Trainer

FAMILIES = ("cosmos3", "vision_language", *pipeline_runs.FAMILIES)
BF16 = ParallelismConfig(fsdp_master_dtype="bfloat16")
ADAPTERS = {"lora_enabled": True, "lora_rank": 3}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bfloat16": {"precision": "bfloat16"},
    "masters": {"precision": "bfloat16", "parallelism": BF16},
    "adapters": {**ADAPTERS, "precision": "bfloat16", "parallelism": BF16},
    "adapters32": ADAPTERS,
    "every_pack": {"parallelism": ParallelismConfig(reduce_every_pack=True)},
    "replicated": {"parallelism": ParallelismConfig(data_parallel_replicate_degree=2, reduce_every_pack=True)},
    "AdamW8bit": {},
}
"""What is set in the model's config; the last one sets the optimizer. All accumulate over two packs."""


def make_world(family: str, folder: Path) -> None:
    if family in pipeline_runs.FAMILIES:
        pipeline_runs.make_world(family, folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        (tiny_runs if family == "cosmos3" else reasoner_runs).make_world(folder)


def config_of(case: str, worlds: Path) -> Trainer.Config:
    """The run of a case, `family.variant`, or `family.variant.trained`, which saves and averages what is trained."""
    family, variant, *trained = case.split(".")
    make = {"cosmos3": tiny_runs.tiny_config, "vision_language": reasoner_runs.reasoner_config}.get(family)
    world = worlds / family
    config: Trainer.Config = make(world) if make else pipeline_runs.pipeline_config(family, world)
    for name, value in VARIANTS[variant].items():
        setattr(config.model.config, name, value)
    config.optimizer.name = "AdamW8bit" if variant == "AdamW8bit" else "AdamW"
    if config.model.config.lora_enabled and family == "vision_language":
        config.model.config.lora_target_modules = "q_proj,down_proj,linear_fc2"
    if trained:
        config.checkpoint.save_weights, config.model.config.ema.trainable_only = "trained", True
    config.trainer.max_iter, config.trainer.grad_accum_iter = 1, 2
    config.scheduler.cycle_lengths, config.scheduler.warm_up_steps = [1], [0]
    config.checkpoint.async_save = False
    return config


def local(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def held(tensors: Iterable[Any]) -> int:
    """Bytes of the memory behind tensors, each once."""
    kept = {}
    for tensor in tensors:
        storage = local(tensor).untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
    return sum(kept.values())


def gradients(network: Any) -> list[torch.Tensor]:
    """All that a backward pass has left behind, FSDP's own included."""
    found = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    for module in network.modules():
        for group in module._get_fsdp_state()._fsdp_param_groups if isinstance(module, FSDPModule) else ():
            kept = [p.unsharded_accumulated_grad for p in group.fsdp_params]
            kept += [p.unsharded_param.grad for p in group.fsdp_params if hasattr(p, "_unsharded_param")]
            found += [tensor for tensor in [*kept, group._partial_reduce_output] if tensor is not None]
    return found


def measure(config: Trainer.Config, folder: Path) -> dict[str, Any]:
    """Bytes that this process holds in a step, and those of the checkpoint after it."""
    trainer, found = Trainer(config, run_folder=folder), dict[str, Any]()
    network, advance, backward = trainer.model.network, trainer.state.advance, steps.forward_backward_batch

    def backward_and_look(*arguments: Any, **settings: Any) -> Any:
        found.setdefault("accumulated", held(gradients(network)))
        loss = backward(*arguments, **settings)
        found["accumulated"] = found["accumulated"] or held(gradients(network))
        return loss

    def look_and_advance(**settings: Any) -> None:
        found["gradients"] = held(gradients(network))
        advance(**settings)

    steps.forward_backward_batch, trainer.state.advance = backward_and_look, look_and_advance  # type: ignore[method-assign]
    try:
        trainer.train()
    finally:
        steps.forward_backward_batch = backward
    states = [value for state in trainer.state.optimizer.state.values() for value in state.values()]
    found["parameters"], found["moments"] = held(native_parameters(network).values()), held(states)
    found["average"] = 0 if trainer.state.ema is None else held(trainer.state.ema.ema_weights.values())
    if trainer.world.is_main:
        saved = folder / "checkpoints" / "iter_000000001"
        entries = {part: read_entries(saved / part) for part in ("model", "optim", "scheduler", "trainer")}
        sizes = {part: {name: size_of(e) for name, e in found.items()} for part, found in entries.items()}
        found["saved"] = {
            "weights": sum(size for name, size in sizes["model"].items() if name.startswith("net.")),
            "average": sum(size for name, size in sizes["model"].items() if name.startswith("net_ema.")),
            "moments": sum(sizes["optim"].values()),
            "other": sum(sizes["scheduler"].values()) + sum(sizes["trainer"].values()),
            "pieces": sum(len(e.chunks) for part in entries.values() for e in part.values()),
            "files": sum(file.stat().st_size for file in saved.rglob("*") if file.is_file()),
        }
    return found


def require_equal(case: str, worlds: Path, found: dict[str, Any], ranks: int = 1, rank: int = 0) -> None:
    """`found`: what `state_ranks.measure` found on a rank."""
    config = config_of(case, worlds)
    model, degrees = config.model.config, plan_degrees(config.model.config.parallelism, ranks)
    table = weight_table(model, config.optimizer.keys_to_select)
    assert table is not None
    states = state_bytes(table, config, degrees, rank)
    for kind in ("parameters", "gradients", "accumulated", "moments", "average"):
        assert getattr(states, kind) == found[kind], (rank, kind)
    if rank == 0:
        assert states.total == max(state_bytes(table, config, degrees, rank).total for rank in range(ranks))
        saved, checkpoint = found["saved"], checkpoint_bytes(table, config, degrees, gpus=False)
        for kind in ("weights", "average", "moments", "other", "pieces"):
            assert getattr(checkpoint, kind) == saved[kind], kind
        assert checkpoint.files == pytest.approx(saved["files"], rel=0.03)


def size_of(entry: Any) -> int:
    return int(entry.size.numel() * entry.properties.dtype.itemsize)


def main(worlds: Path, out: Path, cases: list[str]) -> None:
    torch.set_num_threads(1)
    for case in cases:
        found = measure(config_of(case, worlds), out / "project" / case / "run")
        (out / f"{case}.{os.environ['RANK']}.json").write_text(json.dumps(found))
    stop_world()


if __name__ == "__main__":
    import_for_videos()
    sys.exit(fork_ranks(partial(main, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
