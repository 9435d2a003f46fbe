"""Published memory of CogVideoX, and what is predicted of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from diffusers_beside import CLIP, LONG_CLIP, held_beside
from published_figure import Published

CLIPS = {"480": "720x480"}
BUCKETS = 2 * 5e8 * 2
"""Bytes of DeepSpeed's two buckets of 5e8 numbers of 16 bits, its default."""
ENCODING = (
    "the predicted peak is of T5-XXL and the VAE, which encode captions and clips before the first step, with tiles as "
    "that program's arguments have it; of clips encoded whole it is 16.9 GB"
)
ZERO2_COPY = (
    "the three values of ZeRO-2 exceed our steps by the same amount: 2 bytes a weight and 2 GB, as if gradients "
    "were whole on each GPU"
)
ZERO3 = (
    "it keeps 10 GB less than ZeRO-2, and is published with 1 GB more: not the peak of a step. The whole pipeline that "
    "generates a validation sample has 26.0 GB in addition to 11.1 GB of states (14.3 GB with a tiled decoder); its "
    "scripts have validation off"
)
Added = Callable[[dict[str, int], float], float]
"""Bytes that are added to the simulated ones, by their kinds and the trained weights."""


def figure(
    what: str,
    gigabytes: float,
    *,
    source: str,
    recipe: str,
    master: str = "bfloat16",
    ranks: int = 1,
    ahead: tuple[int, int, int] | None = None,
    trained: float = 0.0,
    added: Added = lambda kinds, trained: 0.0,
    words: str = "nothing",
    explanation: str = "",
) -> Published:
    """`ahead`: the clips that are encoded before the first step. `trained`: weights, for what is added, of which
    `words` tell."""

    def predict() -> float:
        encoding = held_beside(ahead, "encode", tiles=True) if ahead else 0
        phases = simulated(recipe, master, ranks)
        return max(encoding, *(sum(kinds.values()) + added(kinds, trained) for kinds in phases))

    return Published(what, gigabytes, source, predict, words, explanation)


def ddp(kinds: dict[str, int], trained: float) -> float:
    return 4 * trained


def zero2(kinds: dict[str, int], trained: float) -> float:
    return (12 + 2) * trained / 8 + BUCKETS - kinds.get("moments", 0) - kinds.get("gradients", 0)


DDP: dict[str, Any] = {"added": ddp, "words": "DDP's buckets, 4 bytes a trained weight"}
ZERO2: dict[str, Any] = {
    "added": zero2,
    "words": "instead of our optimizer state and gradients an eighth of 14 bytes per weight, and two buckets of 1 GB",
}
OWN: dict[str, Any] = {"source": "CogVideo finetune/README", "ahead": CLIP}
LONG: dict[str, Any] = {**OWN, "ahead": LONG_CLIP}
VIDEOS = [
    figure("CogVideoX-2B LoRA 128", 16, recipe="cogvideox_2b_lora", explanation=ENCODING, **OWN),
    figure("CogVideoX-5B LoRA 128", 24, recipe="cogvideox_5b_lora", **OWN),
    figure("CogVideoX1.5-5B LoRA 128", 35, recipe="cogvideox1_5_5b_lora", **LONG),
    figure(
        "CogVideoX-2B all weights, DDP", 36, recipe="cogvideox_2b", master="float32", trained=1.694e9, **OWN, **DDP
    ),
    figure(
        "CogVideoX-2B all weights, ZeRO-2", 17, recipe="cogvideox_2b", trained=1.694e9, **OWN, **ZERO2,
        explanation=f"{ENCODING}; {ZERO2_COPY}",
    ),
    figure(
        "CogVideoX-5B all weights, ZeRO-2", 42, recipe="cogvideox_5b", trained=5.570e9, **OWN, **ZERO2,
        explanation=ZERO2_COPY,
    ),
    figure(
        "CogVideoX-5B all weights, ZeRO-3", 43, recipe="cogvideox_5b", master="float32", ranks=8, **OWN,
        explanation=ZERO3,
    ),
    figure(
        "CogVideoX1.5-5B all weights, ZeRO-2", 55, recipe="cogvideox1_5_5b", trained=5.570e9, **LONG, **ZERO2,
        explanation=ZERO2_COPY,
    ),
    figure("CogVideoX-5B LoRA 128, training alone", 20.7, recipe="cogvideox_5b_lora", source="finetrainers PR 175"),
    figure(
        "CogVideoX-5B all weights, all in bfloat16", 53, recipe="cogvideox_5b", source="finetrainers README"
    ),
]  # fmt: skip


@cache
def simulated(recipe: str, master: str, ranks: int) -> list[dict[str, int]]:
    """Kinds of bytes at the worst moments of a step over one clip, without an average, its latents from a cache."""
    import worldsmith.families.recipes  # noqa: F401
    from worldsmith.config.recipes.registry import get_recipe
    from worldsmith.config.tree.references import resolve
    from worldsmith.planning.simulation.simulate import simulate
    from worldsmith.planning.simulation_inputs import assumed_batches, substitute_missing_components, task_for

    os.environ.setdefault("DATASET_PATH", "none")
    os.environ.setdefault("COGVIDEOX_PATH", "none")
    config: Any = get_recipe(recipe)
    config.model.config.ema.enabled = False
    config.model.config.parallelism.fsdp_master_dtype = master
    data = config.dataloader_train
    data.max_samples_per_batch = 1
    data.dataset.resolution = CLIPS.get(data.dataset.resolution, data.dataset.resolution)
    with substitute_missing_components(resolve(config)) as stated:
        batches = assumed_batches(stated.config, task_for(stated.config, ranks)).batches
        return [dict(phase.kinds) for phase in simulate(stated.config, batches, ranks=ranks).phases]
