"""What the folder of a study keeps, and what a trial may know of the others."""

from __future__ import annotations

import json
import math

import pytest
from optuna.distributions import FloatDistribution

from worldsmith.tools.tune.record import Record, ended
from worldsmith.tools.tune.strategy import TrialPlan
from worldsmith.tools.tune.trials import Trials, last_or_best
from worldsmith.tools.tune.tune import Tune

VALUES = (0.5, 0.25, None, 0.25, 0.75, 0.3)


def plan(number: int) -> TrialPlan:
    rate = 10.0**-number
    refused = [{"settings": {"lr": 1.0}, "reason": "too large"}] if number == 2 else []
    return TrialPlan(number, {"lr": rate}, {"lr": rate}, {"lr": FloatDistribution(1e-9, 1, log=True)}, refused)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    made = Record(tmp_path_factory.mktemp("study"), {"run": {}}, "min")
    for number, value in enumerate(VALUES):
        made.keep_plan(plan(number))
        state = "failed" if value is None else "pruned" if number == 4 else "complete"
        made.add(ended(plan(number), state, value=value, reported=[1.0, math.nan], reason=None, seconds=1.26))
    return made


def test_a_study_that_is_opened_again_is_what_it_was(record: Record) -> None:
    again = Record(record.folder, {"run": {}}, "min")
    assert again.lines() == record.lines()
    assert [line["value"] for line in again.lines()] == list(VALUES)
    assert again.lines()[3] == {
        "trial": 3,
        "state": "complete",
        "value": 0.25,
        "validations": [1.0, None],
        "settings": {"lr": 1e-3},
        "words": ["lr=0.001"],
        "reason": None,
        "refused": [],
        "seconds": 1.3,
        "run": "trials/0003",
    }
    assert again.best is not None
    assert again.best.number == 1  # the first of equal ones
    assert again.counts() == {"complete": 4, "pruned": 1, "failed": 1, "refused_draws": 1}
    assert again.plan(2) == plan(2)
    again.write_lines()
    assert [json.loads(line) for line in (record.folder / "trials.jsonl").read_text().splitlines()] == record.lines()


@pytest.mark.slow
def test_what_matters_is_told_of_complete_trials(record: Record) -> None:
    assert record.importances() == {"lr": 1.0}


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_a_trial_knows_those_that_had_ended_whatever_was_quick(record: Record, parallel: int) -> None:
    """Of N at work at once, the N - 1 before it count as at work also when they have ended."""
    setup = Tune.Config(source="videophy2_nano_tiny", trials=9, parallel=parallel).build().setup
    trials = Trials(record, setup, record.write_lines)
    states = [trial.state.name for trial in trials.known(6)]
    assert states[6 - parallel + 1 :] == ["RUNNING"] * (parallel - 1)
    assert (
        states[: 6 - parallel + 1] == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE", "PRUNED", "COMPLETE"][: 7 - parallel]
    )
    assert [trial.params for trial in trials.known(6)] == [plan(n).drawn for n in range(6)]


def test_the_value_is_the_last_or_the_best_whose_weights_are_kept() -> None:
    assert last_or_best([3.0, 1.0, 2.0], best=None) == 2.0
    assert last_or_best([3.0, 1.0, 2.0], best=min) == 1.0
    assert last_or_best([3.0, None], best=min) == 3.0
    assert last_or_best([3.0, None], best=None) is None
    assert last_or_best([None], best=max) is None
