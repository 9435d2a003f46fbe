"""Which memory and time do the recipes by card (examples/toml/one_gpu) need? Prints the table of docs/one_gpu.md.

A file that ends in `_24gb` is planned for an RTX 4090, `_48gb` for an RTX 6000 Ada, `_80gb` for an H100, by the exact
plan (`worldsmith plan --encoded`), which needs no GPU. Nothing is measured.

    python benchmarks/one_gpu.py [FILE…]
"""

from __future__ import annotations

import sys
from pathlib import Path

from worldsmith.config.load import load
from worldsmith.distributed.gpus import GIB, GPUS, Gpu
from worldsmith.planning.estimate_time import EstimateRange
from worldsmith.planning.plan import Plan, make_plan
from worldsmith.planning.simulation_inputs import quietly
from worldsmith.training.run_config import why_not_encodable

FOLDER = Path(__file__).parents[1] / "examples" / "toml" / "one_gpu"
CARDS = {"24gb": "rtx-4090", "48gb": "rtx-6000-ada", "80gb": "h100-80"}
HEADER = """| file | GPU memory, GiB | host RAM, GiB | copies, GiB/step | s/step, copies overlap | s/step, no overlap |
|---|---:|---:|---:|---:|---:|"""


def card_of(file: Path) -> Gpu:
    return GPUS[CARDS[file.stem.rpartition("_")[2]]]


def plan_of(file: Path) -> Plan:
    """Returns the exact plan of a recipe by card, with a complete latent cache if the run can have one."""
    config = load(str(file), [], keep_unset="names").tree
    with quietly():
        return make_plan(config, 1, card_of(file), encoded=not why_not_encodable(config))


def summary(plan: Plan) -> str:
    """The line of a file on its plan."""
    if plan.step is None:
        raise ValueError(plan.untimed)
    memory = f"{plan.memory.needed / GIB:.1f} of {plan.memory.gpu.memory / GIB:.1f} GiB on the GPU"
    return f"{memory}, {plan.host.total / GIB:.0f} GiB of host RAM, {seconds(plan.step.total)} s per step"


def row(file: Path, plan: Plan) -> str:
    """One line of the table."""
    if plan.step is None:
        raise ValueError(f"{file.name}: {plan.untimed}")
    memory, step = plan.memory, plan.step
    cells = [f"`{file.stem}`", f"{memory.needed / GIB:.1f} of {memory.gpu.memory / GIB:.1f}"]
    cells += [f"{plan.host.total / GIB:.0f}", f"{plan.work.copied_bytes / GIB:.0f}" if plan.work.copied_bytes else "–"]
    cells += [seconds(step.overlapped), seconds(step.separate) if plan.work.copied_bytes else "–"]
    return f"| {' | '.join(cells)} |"


def seconds(found: EstimateRange) -> str:
    fast, slow = (f"{number:.2g}" if number < 100 else f"{number:.0f}" for number in (found.fast, found.slow))
    return f"{fast} to {slow}"


def main(files: list[str]) -> None:
    print(HEADER, flush=True)
    for file in map(Path, files) if files else sorted(FOLDER.glob("*.toml")):
        plan = plan_of(file)
        print(row(file, plan), "" if plan.memory.spare >= 0 else "DOES NOT FIT", flush=True)
        if summary(plan) not in file.read_text():
            print(f"# {file.name} should state: {summary(plan)}.", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
