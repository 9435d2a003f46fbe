"""Steps of tiny reasoners on several ranks: `python reasoner_ranks.py FOLDER CASE…` in torchrun's environment.

Each case trains with the trainer's own functions and writes losses and whole gradients to FOLDER/<case>.pt.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import peft  # noqa: F401 (imported once for all forks)
import torch
from launch import fork_ranks, without_inductor
from tiny_reasoner import conversation, decoder, make_task, model_config, qwen2_5_vl, qwen3_vl, write_folder
from torch.distributed.fsdp import fully_shard  # noqa: F401
from torch.distributed.tensor import DTensor

from worldsmith.config.sections import ActivationCheckpointingConfig, CompileConfig, ParallelismConfig
from worldsmith.data.conversations.chat_processor import ChatSample
from worldsmith.distributed.world import World, stop_world
from worldsmith.families.vision_language.policy import FreezeConfig
from worldsmith.models.parameter_names import native_parameters
from worldsmith.training.optimizer import AdamW
from worldsmith.training.parallel import build_model, join_world
from worldsmith.training.step import StepInputs, forward_backward

SEED = 7
SAMPLES = 16
"""Of each step."""
VIEWS: list[list[tuple[str, tuple[int, int, int]]]] = [
    [],
    [("image", (1, 4, 6))],
    [("video", (2, 4, 4))],
    [("image", (1, 2, 4)), ("video", (1, 4, 4))],
]
"""What samples show, in turn: on four ranks one has text alone, one images, one videos."""


@dataclass(frozen=True)
class Case:
    backbone: str = "qwen3_vl"
    steps: int = 1
    accumulate: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    freeze: dict[str, Any] = field(default_factory=dict)


REPLICATED = {"parallelism": ParallelismConfig(data_parallel_replicate_degree=2)}
SELECTIVE = {"activation_checkpointing": ActivationCheckpointingConfig(mode="selective")}
MATMULS = {"activation_checkpointing": ActivationCheckpointingConfig(mode="selective", save_every_second_matmul=True)}
COMPILED = {"compile": CompileConfig(enabled=True)}
FULL = {"activation_checkpointing": ActivationCheckpointingConfig(mode="full", determinism_check="match")}
PADDED = {"sequence_packing": False}
ADAPTERS = {"lora_enabled": True, "lora_rank": 4, "lora_target_modules": "q_proj,linear_fc1"}
OFFLOADED = {"parallelism": ParallelismConfig(offload="frozen")}
ALL_OFFLOADED = {"parallelism": ParallelismConfig(offload="all")}
HALF = {"parallelism": ParallelismConfig(offload="all", offload_fraction=0.5)}
CASES: dict[str, Case] = {
    "packed": Case(),
    "packed_4": Case(accumulate=4),
    "padded": Case(settings=PADDED),
    "padded_4": Case(settings=PADDED, accumulate=4),
    "tied": Case("qwen3_vl tied", steps=3),
    "replicated": Case(settings=REPLICATED),
    "recomputed": Case(settings=FULL),
    "selective": Case(settings=SELECTIVE),
    "compiled": Case(settings=COMPILED),
    "aot_full": Case(
        settings={**COMPILED, "activation_checkpointing": ActivationCheckpointingConfig(mode="full")}, steps=2
    ),
    "aot_selective": Case(settings={**COMPILED, **SELECTIVE}, steps=2),
    "aot_matmuls": Case(settings={**COMPILED, **MATMULS}, steps=2),
    "aot_adapters": Case(settings={**COMPILED, **MATMULS, **ADAPTERS}),
    "frozen": Case(freeze={"freeze_vision_encoder": True}, accumulate=4),
    "frozen_recomputed": Case(freeze={"freeze_vision_encoder": True, "freeze_mm_projector": True}, settings=FULL),
    "adapters": Case(settings=ADAPTERS, steps=2),
    "adapters_offloaded": Case(settings={**ADAPTERS, **OFFLOADED}, steps=2),
    "frozen_offloaded": Case(freeze={"freeze_vision_encoder": True}, accumulate=4, settings=OFFLOADED),
    "packed_offloaded": Case(settings=ALL_OFFLOADED),
    "tied_offloaded": Case("qwen3_vl tied", steps=3, settings=HALF),
    "windows": Case("qwen2_5_vl", accumulate=2),
    "windows_recomputed": Case("qwen2_5_vl", settings=FULL, freeze={"freeze_vision_encoder": True}),
    **{name: Case(name, steps=5) for name in ("llama", "qwen3", "deepseek_v3", "gpt_oss", "llama4_text")},
}


def samples_of(case: Case, step: int) -> list[ChatSample]:
    visual = case.backbone.startswith(("qwen2_5_vl", "qwen3_vl"))
    return [
        conversation(100 * step + index, VIEWS[index % 4] if visual else (), text=4 + index, backbone=case.backbone)
        for index in range(SAMPLES)
    ]


def make_config(case: Case, folder: Path) -> Any:
    place = write_folder(folder / case.backbone, backbone(case))
    return model_config(place, freeze=FreezeConfig(**case.freeze), **case.settings)


def backbone(case: Case) -> Any:
    if case.backbone == "qwen2_5_vl":
        return qwen2_5_vl()
    return qwen3_vl(tied="tied" in case.backbone) if case.backbone.startswith("qwen3_vl") else decoder(case.backbone)


def run_case(case: Case, world: World, folder: Path) -> dict[str, Any]:
    model = build_model(make_config(case, folder), world)
    model.init_weights(SEED)
    task = make_task(model, world)
    adamw = AdamW.Config(lr=1e-3, eps=1e-6, weight_decay=0.01, fused=False).build(network=model.network)
    losses, gradients = [], []
    for index in range(case.steps):
        own = samples_of(case, index)[world.data_rank :: world.data_size]
        step = forward_backward(
            StepInputs(index, [own[start :: case.accumulate] for start in range(case.accumulate)]), task, seed=0
        )
        task.check_gradients(step.weight, step.sums)
        losses.append(step.loss)
        gradients.append(
            {name: whole(p.grad) for name, p in native_parameters(model.network).items() if p.grad is not None}
        )
        adamw.optimizer.step()
        adamw.optimizer.zero_grad(set_to_none=True)
    return {"losses": losses, "gradients": gradients, "sharded": any(isinstance(p, DTensor) for p in adamw.parameters)}


def whole(tensor: Any) -> Any:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def run_rank(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rank = int(os.environ["RANK"])
    for name in names:
        own = folder / f"rank_{rank}"
        world = join_world(make_config(CASES[name], own))
        with without_inductor() if name.startswith("aot") else nullcontext():
            result = run_case(CASES[name], world, own)
        if world.is_main:
            torch.save(result, folder / f"{name}.pt")
    stop_world()


if __name__ == "__main__":
    sys.exit(fork_ranks(partial(run_rank, Path(sys.argv[1]), sys.argv[2:])))
