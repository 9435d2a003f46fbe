"""Warm-up and decay of a training spec as cycles of our schedules, step by step the same factors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worldsmith.dialects.translation import SpecTranslation

if TYPE_CHECKING:
    from worldsmith.dialects.cosmos_rl.train.steps import Steps

SHAPES = {"linear": "LambdaLinear", "cosine": "LambdaCosine", "sqrt": "LambdaSqrt"}
WARM_UP, EPOCHS = "train.optm_warmup_steps", "train.optm_warmup_epochs"
SHAPE, RATIO = "train.optm_decay_type", "train.optm_decay_ratio"
START, END = "train.optm_warmup_start_factor", "train.optm_min_lr_factor"


def put_schedule(t: SpecTranslation, steps: Steps) -> None:
    """The warm-up reaches 1 in its last step; the rate stays until the decay begins, and falls to the last step.

    Where it stays, a cycle of its own ends with the factor 1.
    """
    total, shape = steps.total, t.get(SHAPE)
    warm_up = warm_up_steps(t, total)
    decay = total - warm_up
    if t.get(RATIO) is not None:
        decay = min(decay, round(total * t.get(RATIO)))
    if shape in (None, "none"):
        decay = 0
    start, end = float(t.get(START)), float(t.get(END))
    ramp = max(0, warm_up - 1)
    cycles = [(total - decay, ramp, start, 1.0, 1.0), (decay, 0, 1.0, 1.0, end)]
    found = [cycle for cycle in cycles if cycle[0]]
    names = ("cycle_lengths", "warm_up_steps", "f_start", "f_max", "f_min")
    t.put("scheduler.type", SHAPES.get(shape, "LambdaLinear"), source=SHAPE)
    sources = (SHAPE, EPOCHS if t.get(EPOCHS) is not None else WARM_UP, START, SHAPE, END)
    for name, values, source in zip(names, zip(*found), sources):
        t.put(f"scheduler.{name}", list(values), source=source)
    t.say(SHAPE, "renamed", f"{SHAPES.get(shape, 'no decay')} over {decay} of {total} steps")
    t.say(START, "renamed", f"scheduler.f_start = {start}")
    t.say(END, "renamed", f"scheduler.f_min = {end}" if decay else "nothing falls, so it has no effect")
    if t.get(RATIO) is not None:
        t.say(RATIO, "renamed", f"scheduler.cycle_lengths: the last {decay} steps")


def warm_up_steps(t: SpecTranslation, total: int) -> int:
    """Number of warm-up steps, at most `total`.

    Epochs of warm-up are counted as in TAO's fork: total // epochs steps each, and up to 1.0 with a decimal point a
    fraction of the run.
    """
    key, asked = (WARM_UP, t.get(WARM_UP)) if t.get(EPOCHS) is None else (EPOCHS, t.get(EPOCHS))
    each, whole = 1, total
    if key == EPOCHS:
        each = total // t.get("train.epoch")
        whole = each * t.get("train.epoch")
        if t.is_stated(WARM_UP):
            t.say(WARM_UP, "dead", f"{EPOCHS} takes its place")
    is_fraction = isinstance(asked, float) and asked <= 1
    found = int(asked * (whole if is_fraction else each))
    t.say(
        key, "renamed", f"a warm-up of {min(found, total)} steps{f'; {found} are more than the run' * (found > total)}"
    )
    return min(found, total)
