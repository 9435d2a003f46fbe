"""Published memory of CogVideoX, and what is predicted of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from published_figure import Published

CLIPS = {"480": "720x480"}
BUCKETS = 2 * 5e8 * 2
"""Bytes of DeepSpeed's two buckets of 5e8 numbers of 16 bits, its default."""
SOURCE = "CogVideo finetune/README"
ENCODING = (
    "LoRA and sharded training of the 2B network are published with nearly the same figure, though their states differ "
    "by gigabytes: it is the peak of another phase. That program encodes all texts first, and T5-XXL alone has 9.5 GB"
)
SAMPLING = (
    "published with the same figure under ZeRO-2 and ZeRO-3, of which the latter keeps 10 GB less: it is not the peak "
    "of a step but of another phase, such as the samples of its validation, with the whole pipeline and the VAE's "
    "decoder"
)
Added = Callable[[dict[str, int], float], float]
"""Bytes that are added to the simulated ones, by their kinds and the trained weights."""


def figure(
    what: str,
    gigabytes: float,
    source: str,
    recipe: str,
    *,
    master: str = "bfloat16",
    ranks: int = 1,
    trained: float = 0.0,
    added: Added = lambda kinds, trained: 0.0,
    beside: str = "nothing",
    explanation: str = "",
) -> Published:
    """`trained`: weights, for what is added, of which `beside` are the words."""

    def predict() -> float:
        phases = simulated(recipe, master, ranks)
        return max(sum(kinds.values()) + added(kinds, trained) for kinds in phases)

    return Published(what, gigabytes, source, predict, beside, explanation)


def ddp(kinds: dict[str, int], trained: float) -> float:
    return 4 * trained


def zero2(kinds: dict[str, int], trained: float) -> float:
    return (12 + 2) * trained / 8 + BUCKETS - kinds.get("moments", 0) - kinds.get("gradients", 0)


DDP: dict[str, Any] = {"added": ddp, "beside": "DDP's buckets, 4 bytes a trained weight"}
ZERO2: dict[str, Any] = {
    "added": zero2,
    "beside": "in place of our moments and gradients an eighth of 14 bytes a weight, and two buckets of 1 GB",
}
VIDEOS = [
    figure("CogVideoX-2B LoRA 128", 16, SOURCE, "cogvideox_2b_lora", explanation=ENCODING),
    figure("CogVideoX-5B LoRA 128", 24, SOURCE, "cogvideox_5b_lora"),
    figure("CogVideoX1.5-5B LoRA 128", 35, SOURCE, "cogvideox1_5_5b_lora"),
    figure("CogVideoX-2B all weights, DDP", 36, SOURCE, "cogvideox_2b", master="float32", trained=1.694e9, **DDP),
    figure(
        "CogVideoX-2B all weights, ZeRO-2", 17, SOURCE, "cogvideox_2b", trained=1.694e9, **ZERO2, explanation=ENCODING
    ),
    figure(
        "CogVideoX-5B all weights, ZeRO-2", 42, SOURCE, "cogvideox_5b", trained=5.570e9, **ZERO2, explanation=SAMPLING
    ),
    figure(
        "CogVideoX-5B all weights, ZeRO-3", 43, SOURCE, "cogvideox_5b", master="float32", ranks=8, explanation=SAMPLING
    ),
    figure(
        "CogVideoX1.5-5B all weights, ZeRO-2", 55, SOURCE, "cogvideox1_5_5b", trained=5.570e9, **ZERO2,
        explanation="as for the 5B network under ZeRO-2, whose difference is as large",
    ),
    figure("CogVideoX-5B LoRA 128, training alone", 20.7, "finetrainers PR 175", "cogvideox_5b_lora"),
    figure("CogVideoX-5B all weights, all in bfloat16", 53, "finetrainers README", "cogvideox_5b"),
]  # fmt: skip


@cache
def simulated(recipe: str, master: str, ranks: int) -> list[dict[str, int]]:
    """Kinds of bytes at the worst moments of a step over one clip, without an average, its latents from a cache."""
    import worldsmith.recipes  # noqa: F401
    from worldsmith.config.recipes.registry import get_recipe
    from worldsmith.config.tree.references import resolve
    from worldsmith.planning.batches import assumed_batches, task_for
    from worldsmith.planning.published_parts import with_published_parts
    from worldsmith.planning.simulation.simulated_run import simulate

    os.environ.setdefault("DATASET_PATH", "none")
    os.environ.setdefault("COGVIDEOX_PATH", "none")
    config: Any = get_recipe(recipe)
    config.model.config.ema.enabled = False
    config.model.config.parallelism.fsdp_master_dtype = master
    data = config.dataloader_train
    data.max_samples_per_batch = 1
    data.dataset.resolution = CLIPS.get(data.dataset.resolution, data.dataset.resolution)
    with with_published_parts(resolve(config)) as stated:
        batches = assumed_batches(stated.config, task_for(stated.config, ranks)).batches
        return [dict(phase.kinds) for phase in simulate(stated.config, batches, ranks=ranks).phases]
