"""Warm-up and decay of a training spec as cycles of our schedules, step by step the same factors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worldsmith.config.specs.translation import Translation

if TYPE_CHECKING:
    from worldsmith.config.specs.train.steps import Steps

SHAPES = {"linear": "LambdaLinear", "cosine": "LambdaCosine", "sqrt": "LambdaSqrt"}
WARM_UP, PASSES = "train.optm_warmup_steps", "train.optm_warmup_epochs"
SHAPE, RATIO = "train.optm_decay_type", "train.optm_decay_ratio"
START, END = "train.optm_warmup_start_factor", "train.optm_min_lr_factor"


def put_schedule(t: Translation, steps: Steps) -> None:
    """The warm-up reaches 1 in its last step; the rate stays until the decay begins, and falls to the last step.

    Where it stays, a cycle of its own ends with the factor 1.
    """
    warm_up = warm_up_steps(t, steps)
    if warm_up is None:
        return
    total, shape = steps.total, t.get(SHAPE)
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
    sources = (SHAPE, PASSES if t.get(PASSES) is not None else WARM_UP, START, SHAPE, END)
    for name, values, source in zip(names, zip(*found), sources):
        t.put(f"scheduler.{name}", list(values), source=source)
    t.say(SHAPE, "renamed", f"{SHAPES.get(shape, 'no decay')} over {decay} of {total} steps")
    t.say(START, "renamed", f"scheduler.f_start = {start}")
    t.say(END, "renamed", f"scheduler.f_min = {end}" if decay else "nothing falls, so it has no effect")
    if t.get(RATIO) is not None:
        t.say(RATIO, "renamed", f"scheduler.cycle_lengths: the last {decay} steps")


def warm_up_steps(t: Translation, steps: Steps) -> int | None:
    """Steps of warm-up, at most all. None, with a mistake, where passes cannot be turned into steps."""
    passes, asked = t.get(PASSES), t.get(WARM_UP)
    if passes is not None:
        found = steps.after(t, PASSES, passes) if passes else 0
        if found is not None:
            t.say(PASSES, "renamed", f"a warm-up of {min(found, steps.total)} steps")
        if t.is_stated(WARM_UP):
            t.say(WARM_UP, "dead", f"{PASSES} takes its place")
        return None if found is None else min(found, steps.total)
    is_share = isinstance(asked, float) and asked <= 1
    found = min(steps.total, int(asked * steps.total if is_share else asked))
    cut = f"; it was {int(asked)} of a run of {steps.total}" if not is_share and asked > steps.total else ""
    t.say(WARM_UP, "renamed", f"a warm-up of {found} steps{cut}")
    return found
