"""How far is a plan's memory from figures that others have published of their own programs?

Each run is simulated as the other program is set up: its weights, precision, clips and batch. What that program keeps
beside ours is added by arithmetic. The table is that of docs/planning_accuracy.md.

    python benchmarks/published_memory.py [--only NUMBER…] [--write docs/planning_accuracy.md]
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Published:
    """Bytes of one GPU that somebody has measured."""

    what: str
    gigabytes: float
    source: str
    recipe: str
    master: str = "bfloat16"
    ranks: int = 1
    trained: float = 0.0
    """Billions of trained weights, for what is added."""
    added: Callable[[dict[str, int], float], float] = lambda kinds, trained: 0.0
    """Bytes that are added to the simulated ones, by their kinds and the trained weights."""
    beside: str = "nothing"
    """What that is, in words."""
    explanation: str = ""
    """For a difference of more than 20 %."""


def ddp(kinds: dict[str, int], trained: float) -> float:
    return 4 * trained


def zero2(kinds: dict[str, int], trained: float) -> float:
    return (12 + 2) * trained / 8 + BUCKETS - kinds.get("moments", 0) - kinds.get("gradients", 0)


DDP = {"added": ddp, "beside": "DDP's buckets, 4 bytes a trained weight"}
ZERO2: dict[str, Any] = {
    "added": zero2,
    "beside": "in place of our moments and gradients an eighth of 14 bytes a weight, and two buckets of 1 GB",
}
FIGURES = [
    Published("CogVideoX-2B LoRA 128", 16, SOURCE, "cogvideox_2b_lora", explanation=ENCODING),
    Published("CogVideoX-5B LoRA 128", 24, SOURCE, "cogvideox_5b_lora"),
    Published("CogVideoX1.5-5B LoRA 128", 35, SOURCE, "cogvideox1_5_5b_lora"),
    Published("CogVideoX-2B all weights, DDP", 36, SOURCE, "cogvideox_2b", master="float32", trained=1.694e9, **DDP),
    Published(
        "CogVideoX-2B all weights, ZeRO-2", 17, SOURCE, "cogvideox_2b", trained=1.694e9, **ZERO2, explanation=ENCODING
    ),
    Published(
        "CogVideoX-5B all weights, ZeRO-2", 42, SOURCE, "cogvideox_5b", trained=5.570e9, **ZERO2, explanation=SAMPLING
    ),
    Published(
        "CogVideoX-5B all weights, ZeRO-3", 43, SOURCE, "cogvideox_5b", master="float32", ranks=8, explanation=SAMPLING
    ),
    Published(
        "CogVideoX1.5-5B all weights, ZeRO-2", 55, SOURCE, "cogvideox1_5_5b", trained=5.570e9, **ZERO2,
        explanation="as for the 5B network under ZeRO-2, whose difference is as large",
    ),
    Published("CogVideoX-5B LoRA 128, training alone", 20.7, "finetrainers PR 175", "cogvideox_5b_lora"),
    Published("CogVideoX-5B all weights, all in bfloat16", 53, "finetrainers README", "cogvideox_5b"),
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


def predict(figure: Published) -> float:
    """In gigabytes, 1e9 bytes."""
    phases = simulated(figure.recipe, figure.master, figure.ranks)
    return max(sum(kinds.values()) + figure.added(kinds, figure.trained) for kinds in phases) / 1e9


def row(figure: Published, predicted: float) -> str:
    ratio = predicted / figure.gigabytes
    explanation = figure.explanation if abs(ratio - 1) > 0.2 else ""
    return (
        f"| {figure.what} | {figure.source} | {figure.gigabytes:g} | {predicted:.1f} | {ratio:.2f} | {figure.beside} | "
        f"{explanation} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, nargs="*", help="places in the table, from 0")
    parser.add_argument("--write", type=Path, help="a file in which the table stands, to be replaced")
    options = parser.parse_args(arguments)
    rows = []
    for figure in FIGURES if options.only is None else [FIGURES[place] for place in options.only]:
        rows.append(row(figure, predict(figure)))
        print(rows[-1], flush=True)
    if options.write:
        text = options.write.read_text()
        whole = re.sub(r"(\|---[-|]*\n)(\|.*\n)+", lambda found: found[1] + "\n".join(rows) + "\n", text, count=1)
        options.write.write_text(whole)


if __name__ == "__main__":
    main()
