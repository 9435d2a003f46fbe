"""What a trial tries depends on the seed, its number and what is known, and on nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial

from worldsmith.config.errors import UserError
from worldsmith.config.load import load
from worldsmith.tools.tune.record import ended
from worldsmith.tools.tune.space import Space
from worldsmith.tools.tune.strategy import ExhaustedError, Strategy, TrialPlan

LR = "optimizer.lr"
BEST = 1e-4


@pytest.fixture(scope="module")
def space() -> Space:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return Space(load("videophy2_nano_tiny").tree, [f"{LR}=log:1e-6..1e-2"])


def distance(settings: Mapping[str, Any]) -> float:
    """Least at the best rate."""
    return abs(math.log10(settings.get(LR, 1e-6) / BEST))


def search(strategy: Strategy, space: Space, count: int) -> tuple[list[TrialPlan], list[FrozenTrial]]:
    """Trials whose validations fall to their distance."""
    plans: list[TrialPlan] = []
    known: list[FrozenTrial] = []
    for number in range(count):
        plan = strategy.plan(number, space, known, {p.number: p.settings for p in plans}, lambda settings: None)
        plan = TrialPlan.from_json(plan.to_json())  # as after a start
        pruning = strategy.start_pruning(known)
        values = [distance(plan.settings) + 1 / (1 + step) for step in range(9)]
        goes_on = all(pruning.report(value) for value in values)
        state = "complete" if goes_on else "pruned"
        known.append(ended(plan, state, value=pruning.reported[-1], reported=pruning.reported, notes=pruning.notes))
        plans.append(plan)
    return plans, known


def test_trial_0_is_the_run_as_it_is_and_the_search_comes_nearer(space: Space) -> None:
    plans, _ = search(Strategy("min", startup=5), space, 20)
    assert plans[0].settings == {}
    assert min(map(distance, (plan.settings for plan in plans[10:]))) < 0.1
    by_chance, _ = search(Strategy("min", sampler="random"), space, 20)
    later, chance = ([distance(plan.settings) for plan in found[10:]] for found in (plans, by_chance))
    assert sum(later) < sum(chance)


def test_a_draw_is_the_same_again_and_another_with_another_seed(space: Space) -> None:
    plans, known = search(Strategy("min", startup=3), space, 8)
    tried = {plan.number: plan.settings for plan in plans[:7]}
    for seed, same in ((0, True), (1, False)):
        again = Strategy("min", startup=3, seed=seed).plan(7, space, known[:7], tried, lambda settings: None)
        assert (again.settings == plans[7].settings) == same
    unfinished = [*known[:5], *(plan.at_work() for plan in plans[5:7])]  # two are at work
    beside = Strategy("min", startup=3).plan(7, space, unfinished, tried, lambda settings: None)
    assert beside.settings.keys() == {LR}


@pytest.mark.parametrize("pruner", ["asha", "hyperband", "median"])
def test_trials_that_are_behind_end_early(space: Space, pruner: Any) -> None:
    strategy = Strategy("min", pruner=pruner, startup=4, most=9)
    plans, known = search(strategy, space, 16)
    pruned = [trial for trial in known if trial.state.name == "PRUNED"]
    assert 2 <= len(pruned) < 15
    assert all(len(trial.intermediate_values) < 9 for trial in pruned)
    best = min(plans, key=lambda plan: distance(plan.settings))
    assert known[best.number].state.name == "COMPLETE"
    patient = replace(strategy, least_validations=4)
    assert all(len(trial.intermediate_values) >= 4 for trial in search(patient, space, 16)[1])


def test_draws_that_cannot_run_are_left_out_and_counted(space: Space) -> None:
    def refusal(settings: Mapping[str, Any]) -> str | None:
        return "too slow" if settings[LR] < 1e-4 else None

    plan = Strategy("min").plan(1, space, [TrialPlan(0).at_work()], {0: {}}, refusal)
    assert plan.settings[LR] >= 1e-4
    found = [Strategy("min", seed=seed).plan(1, space, [TrialPlan(0).at_work()], {0: {}}, refusal) for seed in range(9)]
    refused = [draw for plan in found for draw in plan.refused]
    assert refused
    assert all(draw["settings"][LR] < 1e-4 and draw["reason"] == "too slow" for draw in refused)
    with pytest.raises(UserError, match=r"none of 100 sampled configurations can run; the last one, .*: never"):
        Strategy("min").plan(1, space, [TrialPlan(0).at_work()], {0: {}}, lambda settings: "never")


def test_nothing_is_tried_twice(space: Space) -> None:
    few = Space(space.tree, ["trainer.grad_accum_iter=1|2|4"], marked=False)
    was = few.value("trainer.grad_accum_iter", {})
    plans: list[TrialPlan] = []

    def draw() -> None:
        known, tried = [plan.at_work() for plan in plans], {plan.number: plan.settings for plan in plans}
        plans.append(Strategy("min").plan(len(plans), few, known, tried, lambda settings: None))

    for _ in {1, 2, 4, was}:
        draw()
    assert {plan.settings.get("trainer.grad_accum_iter", was) for plan in plans} == {1, 2, 4, was}
    with pytest.raises(ExhaustedError):
        draw()
