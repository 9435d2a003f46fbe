"""What does `worldsmith plan --fit` answer for each full-size recipe on one GPU with 24, 48 or 80 GB?

Nothing is measured. The answers so far are in docs/one_gpu_answers.jsonl.

Appends a line of JSON to FILE for each recipe and card, and skips those that FILE already has. Each best setting is
planned again by `worldsmith plan`, whose memory must be equal to the byte.

    python benchmarks/fit_recipes.py FILE [RECIPE…]
    python benchmarks/fit_recipes.py FILE --table     # the table of docs/one_gpu.md
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from one_gpu import CARDS, seconds
from recipe_steps import full_size

from worldsmith.config.load import load
from worldsmith.distributed.gpus import GPUS
from worldsmith.planning.estimate_time import EstimateRange
from worldsmith.planning.plan import make_plan
from worldsmith.planning.simulation_inputs import quietly
from worldsmith.tools.plan.evaluate_settings import Clock, Fitting
from worldsmith.tools.plan.fit import find_fits, fit_facts
from worldsmith.tools.plan.plan import BUDGET, BUDGET_TO_FIND_ONE

SHORT = {
    r"only adapters \(they need a higher optimizer.lr\)": "LoRA",
    "(weight )?updates (are )?rounded to bfloat16": "bfloat16 weights",
    "optimizer state in 8 bits": "AdamW8bit",
    r"frozen weights rounded to (\d) bits": r"\1-bit base",
    r"clips of (\d+) frames instead of \d+": r"\1 frames",
    r"a resolution of (\w+) instead of \w+": r"resolution \1",
}
"""Regex of a change of what is learned → its short form."""
SIMULATED = ("works", "uniform", "encodings", "lists", "data")
KEPT = ("stopped", "tried", "settings", "enough_gpus", "data")


def answer(recipe: str, gpu: str, simulated: dict[str, Any]) -> dict[str, Any]:
    """Returns the best setting of a recipe on one GPU and whether an exact plan has the same memory.

    `simulated`: steps that were simulated for other GPUs (they do not depend on the GPU); this search adds its own.
    """
    start = time.process_time()
    clock = Clock(BUDGET, BUDGET_TO_FIND_ONE)
    fitting = Fitting(lambda words: load(recipe, [*words], keep_unset="names"), ranks=1, gpu=GPUS[gpu], clock=clock)
    vars(fitting).update(simulated)
    simulated |= {name: getattr(fitting, name) for name in SIMULATED}
    found = find_fits(fitting)
    facts = fit_facts(found)
    result = {"recipe": recipe, "gpu": gpu, "cpu_seconds": round(time.process_time() - start, 1)}
    result |= {name: facts[name] for name in KEPT}
    best = facts["best"][0] if facts["best"] else facts["nearest"]
    if best is not None:
        result |= {name: best[name] for name in ("fits", "learned", "encoded_first", "words", "options", "seconds")}
        result["needed_bytes"] = best["memory"]["needed_bytes"]
    if found.best:
        setting = found.best[0].setting
        with quietly():
            plan = make_plan(fitting.read(setting.words).tree, 1, fitting.gpu)
        result["confirmed"] = plan.memory == found.best[0].memory
    return result


def cell(found: dict[str, Any] | None) -> str:
    """Returns the cell of a table: the memory in GiB, what changes, and the seconds per step."""
    if found is None:
        return "not asked"
    if not found.get("fits"):
        return "–" if found["enough_gpus"] is None else f"{found['enough_gpus']['gpus']} GPUs"
    if not found["confirmed"]:
        raise ValueError(f"{found['recipe']}, {found['gpu']}: the exact plan has another memory")
    changed = "" if found["learned"] == "nothing" else found["learned"]
    for long, short in SHORT.items():
        changed = re.sub(long, short, changed)
    offload = "offload" if found["options"].get("offload", "none") != "none" else ""
    time = f"{seconds(EstimateRange(**found['seconds']))} s"
    return "; ".join(filter(None, (f"{found['needed_bytes'] / 2**30:.1f}", changed, offload, time)))


def table(answers: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields the lines of a table with one row per recipe and one column per GPU."""
    known = {(found["recipe"], found["gpu"]): found for found in answers}
    yield f"| recipe | {' | '.join(card.removesuffix('gb') + ' GB' for card in CARDS)} |"
    yield "|---" * (len(CARDS) + 1) + "|"
    for recipe in full_size():
        if any(name == recipe for name, _ in known):
            yield f"| `{recipe}` | {' | '.join(cell(known.get((recipe, gpu))) for gpu in CARDS.values())} |"


def main(file: Path, recipes: list[str]) -> None:
    answers = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if recipes == ["--table"]:
        print("\n".join(table(answers)))
        return
    known = {(found["recipe"], found["gpu"]) for found in answers}
    for recipe in recipes or full_size():
        simulated: dict[str, Any] = {}
        for gpu in CARDS.values():
            if (recipe, gpu) not in known:
                result = answer(recipe, gpu, simulated)
                with file.open("a") as lines_out:
                    lines_out.write(json.dumps(result) + "\n")
                print(recipe, gpu, "fits" if result.get("fits") else "does not fit", result.get("learned"), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
