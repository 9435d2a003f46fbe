"""Published memory of Llama, Qwen3-VL and Cosmos3, sizes of their checkpoints, and what is predicted of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from published_figure import Published

GIB = 2**30 / 1e9
"""In gigabytes of 1e9 bytes."""
GPU = 79.1 * GIB
"""What a GPU of 80 GB has."""
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}
"""Llama 3.1 8B."""
TOKENS = 2 * 8192
PRODUCTS = 2 * TOKENS * 32 * (4096 + 1024 + 14336 + 4096)
"""Bytes of every second product of a layer (queries, values, gate, last): torchtitan keeps them, with the attention."""
COMPILED_LOSS = (2 * 2 - 3 * 4) * TOKENS * 128256
"""What it has less than ours: logits and their gradients in 16 bits, in place of three such tensors in float32."""
KEPT = "every second matrix product of a layer, kept there and made again here: 24.7 GB"
VISUAL_TOWER, WAN_VAE = 576.4e6, 704.7e6
"""Weights, of Qwen3-VL-8B and of Wan 2.2."""


def run_tree(recipe: str, model: str = "") -> Any:
    """The recipe, with another backbone and all processes as shares of one copy where `model` names that."""
    import worldsmith.families.recipes  # noqa: F401
    from worldsmith.config.recipes.registry import get_recipe

    config: Any = get_recipe(recipe)
    if model:
        backbone, parallelism = config.model.config.policy.backbone, config.model.config.parallelism
        backbone.model_name, backbone.safetensors_path, config.optimizer.lr_multipliers = model, "", {}
        parallelism.data_parallel_shard_degree, parallelism.data_parallel_replicate_degree = -1, 1
    return config


def peak(
    model: str, ranks: int, tokens: int, *, samples: int | None = 1, mode: str = "full", all_learned: bool = False
) -> int:
    """Bytes of a step of one rank over so many tokens. `all_learned`: each is a target, and logits are in one piece."""
    from worldsmith.config.tree.references import resolve
    from worldsmith.planning.simulation.simulate import simulate
    from worldsmith.planning.simulation_inputs import assumed_batches, substitute_missing_components, task_for

    config = run_tree("pre_exp012_llava_ov", model)
    config.model.config.activation_checkpointing.mode = mode
    config.data_setting.max_tokens = tokens + 1  # a cap that is not reached
    config.dataloader_train.max_samples_per_batch = samples
    if all_learned:
        config.objective.chunk_tokens = tokens
    with substitute_missing_components(resolve(config, keep_unset="names")) as stated:
        batches = assumed_batches(stated.config, task_for(stated.config, ranks)).batches
        if all_learned:
            batches = [[replace(sample, labels=sample.input_ids) for sample in batch] for batch in batches]
        return max(phase.peak for phase in simulate(stated.config, batches, ranks=ranks).phases)


@cache
def llama_peak(ranks: int, tokens: int, *, added: float = 0.0, **setting: Any) -> float:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(LLAMA))
        return peak(folder, ranks, tokens, all_learned=True, **setting) + added


def qwen(size: str) -> str:
    return f"Qwen/Qwen3-VL-{size}-Instruct"


def quick(
    recipe: str, figure: Callable[[Any], float], *, model: str = "", ranks: int = 8, save_weights: str = ""
) -> float:
    """Of the quick plan of a recipe."""
    from worldsmith.config.tree.references import resolve
    from worldsmith.planning.plan import quick_plan

    config = run_tree(recipe, model)
    config.checkpoint.save_weights = save_weights or config.checkpoint.save_weights
    return figure(quick_plan(resolve(config, keep_unset="names"), ranks))


def checkpoint(plan: Any) -> float:
    return float(plan.checkpoint_tensors)


def states(plan: Any) -> float:
    return float(sum(plan.states.values()))


TITAN, TRAINY = "torchtitan llama3_h100_202412", "torchtitan llama3-8b_h200_202506"
SELECTIVE: dict[str, Any] = {"samples": 2, "mode": "selective"}
llama_on_eight = partial(llama_peak, 8, TOKENS, added=PRODUCTS, **SELECTIVE)
REASONERS = [
    Published("Llama 3.1 8B, 2 × 8,192 tokens, selective, 8 H100", 82.4 * GIB, TITAN, llama_on_eight, KEPT),
    Published("the same, compiled", 77.0 * GIB, TITAN, llama_on_eight, f"{KEPT}; nothing for compiled layers"),
    Published(
        "Llama 3.1 8B, 32,768 tokens, full recomputation, compiled, float8, 8 H100", 83.9 * GIB, TITAN,
        partial(llama_peak, 8, 32768),
    ),
    Published(
        "Llama 3.1 8B, 2 × 8,192 tokens, selective, compiled with its loss, float8, 32 H200", 47.96 * GIB, TRAINY,
        partial(llama_peak, 32, TOKENS, added=PRODUCTS + COMPILED_LOSS, **SELECTIVE),
        f"{KEPT}; less 16.8 GB, as a compiled loss makes no logits in float32",
    ),
    Published(
        "Cosmos-Reason2-32B, all weights, 1,024 tokens, out of memory on 8 H100", GPU, "cosmos-reason2 issue 54",
        partial(peak, qwen("32B"), 8, 1024), bound=">",
        explanation="cut into eight it fits, with 10 GB to spare; the report does not say how it was cut, and settings "
        "that are shipped for its family cut into four (the next row)",
    ),
    Published(
        "the same, cut into four as in the shipped settings", GPU, "cosmos-reason2 issue 54",
        partial(quick, "pre_exp012_llava_ov", states, model=qwen("32B"), ranks=4),
        "only weights, gradients and optimizer state",
        bound=">", quick=True,
    ),
    Published(
        "Qwen3-VL-8B, all weights, total requirement", 256, "TAO 7.2, checks before a start",
        lambda: 4 * peak(qwen("8B"), 4, 4096), "4 GPUs, 4,096 tokens each, full recomputation", bound="<",
    ),
    Published(
        "Qwen3-VL-8B, all weights, packs of 61,440 tokens of images, runs on 32 A800", GPU, "lmms-engine README",
        partial(peak, qwen("8B"), 32, 61440, samples=None), "full recomputation is assumed", bound="<",
    ),
    Published(
        "Cosmos3-Nano, weights of the reasoner", 16.3 * GIB, "NVIDIA/cosmos PR 279",
        partial(quick, "pre_exp012_llava_ov", lambda plan: 2 * plan.parameters), "16 bits a weight", quick=True,
    ),
    Published(
        "Cosmos3-Nano, all weights, for generating", 34, "NVIDIA/cosmos PR 279",
        partial(quick, "vision_sft_nano", lambda plan: 2 * (plan.parameters + VISUAL_TOWER + WAN_VAE)),
        "the visual tower and the VAE; 16 bits a weight; no tokenizer of sound", quick=True,
    ),
    Published(
        "Qwen3-VL-8B, checkpoint of all weights", 105, "12 bytes a weight, cosmos-framework",
        partial(quick, "pre_exp012_llava_ov", checkpoint), quick=True,
    ),
    Published(
        "Cosmos3-Nano, checkpoint of the SFT recipe", 190, "an estimate for cosmos-framework",
        partial(quick, "vision_sft_nano", checkpoint), quick=True,
    ),
    Published(
        "Cosmos3-Super, checkpoint of the LoRA recipe with all weights", 256, "an estimate for cosmos-framework",
        partial(quick, "vision_sft_super", checkpoint, save_weights="all"),
        "nothing; our recipe saves the adapters alone, 0.5 GB", quick=True,
    ),
]  # fmt: skip
