"""A step of tiny pipeline families in many arrangements: `launch` runs `pipeline_ranks.py WORLDS OUT CASE…`.

Each case trains the same four samples with the trainer's own functions and writes loss and whole gradients to
OUT/<case>.pt. WORLDS has a folder for each family.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import diffusers
import peft  # noqa: F401 (imported once for all forks)
import torch
import transformers
from launch import fork_ranks, without_inductor
from pipeline_runs import pipeline_config
from torch.distributed.fsdp import fully_shard  # noqa: F401
from torch.distributed.tensor import DTensor

from worldsmith.config.sections import ActivationCheckpointingConfig, CompileConfig, ParallelismConfig
from worldsmith.distributed.world import World, stop_world
from worldsmith.models.fill_parameters import fill
from worldsmith.models.parameter_names import native_parameters
from worldsmith.tasks.registry import task_of
from worldsmith.training.parallel import build_model, join_world
from worldsmith.training.step import StepInputs, forward_backward

LOADED = diffusers.AutoencoderKLCogVideoX, diffusers.AutoencoderKL, transformers.T5EncoderModel
SEED, DRAWS, SAMPLES = 7, 3, 4
FULL = {"activation_checkpointing": ActivationCheckpointingConfig(mode="full", determinism_check="match")}
MATMULS = {"activation_checkpointing": ActivationCheckpointingConfig(mode="selective", save_every_second_matmul=True)}
COMPILED = {"compile": CompileConfig(enabled=True)}
ADAPTERS = {"lora_enabled": True, "lora_rank": 4}
OFFLOADED = {"parallelism": ParallelismConfig(offload="frozen")}
ALL_OFFLOADED = {"parallelism": ParallelismConfig(offload="all")}
ARRANGEMENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "full": FULL,
    "selective": {"activation_checkpointing": ActivationCheckpointingConfig(mode="selective")},
    "matmuls": MATMULS,
    "compiled": COMPILED,
    "aot_full": {**COMPILED, "activation_checkpointing": ActivationCheckpointingConfig(mode="full")},
    "aot_selective": {**COMPILED, "activation_checkpointing": ActivationCheckpointingConfig(mode="selective")},
    "aot_matmuls": {**COMPILED, **MATMULS},
    "adapters_aot_matmuls": {**ADAPTERS, **COMPILED, **MATMULS},
    "adapters": ADAPTERS,
    "adapters_full": {**ADAPTERS, **FULL},
    "adapters_offloaded": {**ADAPTERS, **OFFLOADED},
    "adapters_offloaded_full": {**ADAPTERS, **OFFLOADED, **FULL},
    "adapters_all_offloaded": {**ADAPTERS, **ALL_OFFLOADED},
    "offloaded": ALL_OFFLOADED,
    "offloaded_full": {**ALL_OFFLOADED, **FULL},
    "every_pack": {"parallelism": ParallelismConfig(reduce_every_pack=True)},
    "replicated": {"parallelism": ParallelismConfig(data_parallel_replicate_degree=2)},
    "replicated_full": {"parallelism": ParallelismConfig(data_parallel_replicate_degree=2), **FULL},
}
"""What is set in the model's config."""


def config_of(case: str, worlds: Path) -> Any:
    """The run of a case, `family.arrangement`."""
    family, arrangement = case.split(".")
    config = pipeline_config(family, worlds / family)
    for name, value in ARRANGEMENTS[arrangement].items():
        setattr(config.model.config, name, value)
    config.dataloader_train.latent_cache, config.dataloader_train.dataset.cfg_dropout_rate = "", 0.0
    return config


def make_task(config: Any, world: World) -> Any:
    model = build_model(config.model.config, world)
    model.init_weights(SEED)
    with torch.no_grad():  # adapters that change nothing would have no gradients
        for name, parameter in native_parameters(model.network).items():
            if name.endswith(".lora_B.weight"):
                fill(parameter, torch.linspace(-0.02, 0.03, parameter.numel()).view(parameter.shape))
    return task_of(config.model.name)(
        model=model, objective=config.objective, data=config.dataloader_train, world=world
    )


def samples_of(config: Any) -> list[Any]:
    """Four samples of one shape, the second of them without its caption."""
    task = make_task(config, World())
    found = list(task.loader().first_samples())
    shape, _ = Counter(sample.latent_shape for sample in found).most_common(1)[0]
    chosen = [sample for sample in found if sample.latent_shape == shape][:SAMPLES]
    chosen[1].caption, chosen[1].text_ids = "", task.tokenize("")
    assert len(chosen) == SAMPLES
    return chosen


def run_case(case: str, worlds: Path, world: World) -> dict[str, Any]:
    """Loss and gradients of a step: one batch on each of several ranks, two on one."""
    config = config_of(case, worlds)
    plain = config_of(f"{case.split('.')[0]}.plain", worlds)
    own = samples_of(plain)[world.data_rank :: world.data_size]
    inputs = StepInputs(0, [own[: len(own) // 2], own[len(own) // 2 :]] if len(own) > 1 else [own])
    with without_inductor() if "aot" in case else nullcontext():
        task = make_task(config, world)
        step = forward_backward(inputs, task, seed=DRAWS)
    parameters = native_parameters(task.model.network)
    gradients = {name: whole(p.grad) for name, p in parameters.items() if p.grad is not None}
    return {
        "loss": step.loss, "gradients": gradients, "sharded": any(isinstance(p, DTensor) for p in parameters.values())
    }  # fmt: skip


def whole(tensor: Any) -> Any:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def run_rank(worlds: Path, out: Path, cases: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for case in cases:
        world = join_world(config_of(case, worlds).model.config)
        result = run_case(case, worlds, world)
        if world.is_main:
            torch.save(result, out / f"{case}.pt")
    stop_world()


if __name__ == "__main__":
    sys.exit(fork_ranks(partial(run_rank, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
