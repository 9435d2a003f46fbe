"""What do compiling and less recomputation save in each full-size recipe? Simulated steps, before and now.

The simulation is that of `worldsmith plan --fit`: a step of the recipe's own code on fake tensors, with few layers,
extrapolated to all. "Before" has full recomputation in all layers, and compiled layers only in the recipes that had
them. Nothing is measured: the seconds are the middle of the plan's range.

    python benchmarks/recipe_steps.py [RECIPE…]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from worldsmith.config.load import load
from worldsmith.config.recipes.registry import recipe_names
from worldsmith.distributed.gpus import GIB, GPUS
from worldsmith.planning.estimate_memory import memory_verdict
from worldsmith.planning.estimate_time import EFFICIENCIES, step_seconds
from worldsmith.planning.work import StepWork
from worldsmith.tools.plan.evaluate_settings import Fitting, limits_of
from worldsmith.tools.plan.settings import MODEL, RECOMPUTE, RECOMPUTE_FIELDS, Setting, baseline_setting

GPU = GPUS["h100-80"]
COMPILED_BEFORE = ("vision_sft_nano", "vision_sft_nano_mapstyle_dataloader", "vision_sft_edge")
UNSUPPORTED = ("videophy2_sft_edge", "cosmos_rl")
"""Recipes without a backbone that can be simulated."""
HEADER = """| recipe | GPUs | s before | s now | change | recomputed PFLOP | other bytes, TB | memory, GiB |
|---|---:|---:|---:|---:|---:|---:|---:|"""


def full_size() -> list[str]:
    """Names of the recipes that are not for a CPU."""
    small = ("tiny", "demo", "moving_shapes", "falling")
    return [name for name in recipe_names() if not any(word in name for word in small) and name not in UNSUPPORTED]


def simulate(name: str) -> tuple[StepWork, bool, StepWork, bool]:
    """Returns the step before and now, each with whether layers are compiled."""
    ranks = 1 if name.endswith("_lora") else 8
    fitting = Fitting(lambda words: load(name, [*words], keep_unset="names"), ranks=ranks, gpu=GPUS["b200"])
    now = baseline_setting(fitting.config, ranks=ranks, batches=fitting.data.batches, limits=limits_of(fitting.loaded))
    if now is None:
        raise ValueError(f"{name}: its parallelism degrees do not fit {ranks} GPUs")
    was_compiled = name in COMPILED_BEFORE
    values = dict(zip(RECOMPUTE_FIELDS, ("full", "none", "false", "1.0", "false"), strict=True))
    words = [*(f"{RECOMPUTE}.{field}={value}" for field, value in values.items())]
    words.append(f"{MODEL}.compile.enabled={str(was_compiled).lower()}")
    before = Setting(now.learned, tuple(words), now.options, now.slower, now.replicas, now.packs)
    works = []
    for setting in (before, now):
        tried = fitting.evaluate(setting, False)
        if tried.work is None:
            raise ValueError(f"{name}: {tried.refused or 'weights and optimizer state exceed the GPU'}")
        works.append(tried.work)
    return works[0], was_compiled, works[1], fitting.config.model.config.compile.enabled


def row(name: str, before: StepWork, was_compiled: bool, now: StepWork, is_compiled: bool) -> str:
    """One line of the table."""
    old, new = seconds(before, was_compiled), seconds(now, is_compiled)
    cells = [f"`{name}`", f"{now.ranks}", f"{old:.2f}", f"{new:.2f}", f"{100 * (new / old - 1):+.0f} %"]
    for measure, digits in ((recomputed, ".3g"), (moved, ".3g"), (needed, ".1f")):
        cells.append(f"{measure(before, was_compiled):{digits}} → {measure(now, is_compiled):{digits}}")
    return f"| {' | '.join(cells)} |"


def seconds(work: StepWork, compiled: bool) -> float:
    found = step_seconds(work, GPU, compiled=compiled)
    if found is None:
        raise ValueError(f"the speed of {GPU.name} is unknown")
    return found.total.middle


def recomputed(work: StepWork, compiled: bool) -> float:
    return (work.hardware_flops - work.model_flops) / 1e15


def moved(work: StepWork, compiled: bool) -> float:
    return work.moved_bytes / 1e12 * (EFFICIENCIES["unfused"][0].middle if compiled else 1)


def needed(work: StepWork, compiled: bool) -> float:
    return memory_verdict(work, GPU).needed / GIB


def main(names: Sequence[str]) -> None:
    print(HEADER)
    for name in names or full_size():
        try:
            print(row(name, *simulate(name)), flush=True)
        except ValueError as error:
            print(f"| `{name}` | {error} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
