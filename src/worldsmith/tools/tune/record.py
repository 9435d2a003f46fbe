"""Folder of a study: its identity, its trials, and the best one.

The trials are in Optuna's SQLite storage with one transaction per trial, so that the process may be killed at any time.
(Optuna's journal file cannot be read after a truncated line, and keeps a lock without an owner.) Trials are added when
they have ended, in the order of their numbers; running trials are known from their plan files.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.config.errors import UserError
from worldsmith.files.atomic import write_text
from worldsmith.files.json_file import read_json_object
from worldsmith.files.locks import LOCK_FILE as LOCK
from worldsmith.files.locks import try_lock
from worldsmith.tools.tune.space import as_words
from worldsmith.tools.tune.strategy import Direction, TrialPlan

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

STUDY, DATABASE, TRIALS, BEST, PAGE = "study.json", "study.db", "trials.jsonl", "best.json", "tune.html"
LEAST = 4
"""Min completed trials for parameter importances."""
RUNS = "trials"
"""Name of the folder of the trials' runs; plan and log of a trial are next to its run folder."""


class Record:
    """Record of a study in `folder`, which is created if it does not exist: its identity and its ended trials.

    Args:
        folder: Folder of the study.
        about: Settings that identify the study, as plain data.
        direction: "min" or "max": which values of the objective are better.

    Raises:
        UserError: If the folder contains another study or other files.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], direction: str) -> None:
        self.folder, self.runs = folder, folder / RUNS
        require_same_study(folder, about)
        self.runs.mkdir(parents=True, exist_ok=True)
        if not (folder / STUDY).exists():
            write_text(folder / STUDY, json.dumps(about, indent=1, ensure_ascii=False) + "\n")
        self.study: Study = open_study(folder / DATABASE, direction)
        self.finished: list[FrozenTrial] = self.study.trials

    def path(self, number: int, suffix: str = "") -> Path:
        """Returns the run folder of trial `number`; with a suffix, the path of the file next to it, such as its log."""
        return self.runs / f"{number:04d}{suffix}"

    def plan(self, number: int) -> TrialPlan | None:
        """Returns the plan (settings) of trial `number`, read from its file; None if the trial was not started."""
        path = self.path(number, ".json")
        return TrialPlan.from_json(path.read_text(encoding="utf-8")) if path.exists() else None

    def keep_plan(self, plan: TrialPlan) -> None:
        """Writes the plan of a trial to a file next to its run folder."""
        write_text(self.path(plan.number, ".json"), plan.to_json())

    def add(self, trial: FrozenTrial) -> None:
        """Adds a trial that has ended to the study; its number must be the next one."""
        self.study.add_trial(trial)
        self.finished = self.study.trials

    @property
    def best(self) -> FrozenTrial | None:
        """Completed trial with the best value; the first one of equal values; None if no trial is complete."""
        found = [trial for trial in self.finished if trial.state.name == "COMPLETE"]
        sign = 1 if self.study.direction.name == "MINIMIZE" else -1
        return min(found, key=lambda trial: (sign * value_of(trial), trial.number), default=None)

    def lines(self) -> list[dict[str, Any]]:
        """Returns the ended trials as plain data, in the format of trials.jsonl."""
        return [trial_as_line(trial, self.path(trial.number)) for trial in self.finished]

    def write_lines(self) -> None:
        """Writes the ended trials to trials.jsonl."""
        lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in self.lines()]
        write_text(self.folder / TRIALS, "".join(lines))

    def importances(self) -> dict[str, float]:
        """Returns the importance (0 to 1) of each dimension for the objective, as computed by Optuna.

        Empty with fewer than 4 complete trials, or if all their values are equal.
        """
        values = [trial.value for trial in self.finished if trial.state.name == "COMPLETE"]
        if len(values) < LEAST or len(set(values)) < 2:
            return {}
        from optuna.importance import get_param_importances

        return get_param_importances(self.study)

    def counts(self) -> dict[str, int]:
        """Returns the number of trials by state ("complete", "pruned", "failed"), and of rejected configurations.

        The latter has the key "refused_draws".
        """
        names = [STATES[trial.state.name] for trial in self.finished]
        refused = sum(len(trial.user_attrs["refused"]) for trial in self.finished)
        return {**{name: names.count(name) for name in STATES.values()}, "refused_draws": refused}


STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


def trial_as_line(trial: FrozenTrial, run: Path) -> dict[str, Any]:
    """Returns an ended trial as plain data, in the format of trials.jsonl; `run` is the folder of its run.

    `settings` are values by config path, and `words` the same settings as overrides. `validations` are the values of
    the metric, None if not finite. `refused` are configurations that were rejected before the trial was selected, as
    dicts of `settings` and `reason`.
    """
    about = trial.user_attrs
    return {
        "trial": trial.number,
        "state": STATES[trial.state.name],
        "value": trial.value if trial.value is None or math.isfinite(trial.value) else None,
        "validations": [None if math.isnan(value) else value for value in trial.intermediate_values.values()],
        "settings": about["settings"],
        "words": as_words(about["settings"]),
        "reason": about["reason"],
        "refused": about["refused"],
        "seconds": about["seconds"],
        "run": f"{RUNS}/{run.name}",
    }


def value_of(trial: FrozenTrial) -> float:
    """Returns the objective value of a completed trial."""
    assert trial.value is not None
    return trial.value


def ended(
    plan: TrialPlan,
    state: str,
    *,
    value: float | None = None,
    reported: Sequence[float] = (),
    notes: Mapping[str, Any] | None = None,
    reason: str | None = None,
    seconds: float = 0.0,
) -> FrozenTrial:
    """Returns an Optuna trial that has ended.

    Args:
        plan: Plan of the trial, with its settings.
        state: "complete", "pruned" or "failed".
        value: Objective value, for a pruned trial its last validation metric; None if the trial failed.
        reported: Validation metrics of the trial, in order; NaN if not finite.
        notes: Optuna system attributes, which the pruner reads when it decides on later trials; None: no attributes.
        reason: Reason of a failure or of pruning; None for a complete trial.
        seconds: Duration of the run in seconds.
    """
    from optuna.trial import TrialState, create_trial

    (name,) = (name for name, state_name in STATES.items() if state_name == state)
    return create_trial(
        state=TrialState[name],
        value=value,
        params=plan.drawn,
        distributions=plan.distributions,
        intermediate_values=dict(enumerate(reported, 1)),
        system_attrs=dict(notes or {}),
        user_attrs={
            "settings": plan.settings,
            "refused": plan.refused,
            "reason": reason,
            "seconds": round(seconds, 1),
        },
    )


def open_study(path: Path, direction: str) -> Study:
    """Opens or creates the Optuna study in the SQLite file `path`.

    `direction` ("min" or "max") states which values of the objective are better.
    """
    from optuna import create_study
    from optuna.storages import RDBStorage
    from sqlalchemy import URL

    storage = RDBStorage(str(URL.create("sqlite", database=str(path.absolute()))))
    goal: Direction = "minimize" if direction == "min" else "maximize"
    return create_study(study_name="tune", storage=storage, direction=goal, load_if_exists=True)


@contextmanager
def lock_study(folder: Path) -> Iterator[None]:
    """Context manager: locks the study in `folder`. Raises UserError if another `worldsmith tune` process uses it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT)  # a lock that processes forked from this one do not have
    try:
        if not try_lock(handle, fcntl.LOCK_EX, folder / LOCK):
            raise UserError(
                f"{folder}: another `worldsmith tune` is using this study; wait for it, or choose another -o"
            )
        yield
    finally:
        os.close(handle)


def require_same_study(folder: Path, about: Mapping[str, Any]) -> None:
    """Raises UserError unless `folder` does not exist, is empty, or contains the study with the settings `about`."""
    if not folder.exists():
        return
    if not (folder / STUDY).exists():
        if any(path.name != LOCK for path in folder.iterdir()):
            raise UserError(f"{folder} is not empty and contains no study ({STUDY}); choose another -o")
        return
    before = read_json_object(folder / STUDY)
    rules = differences({**before, "run": None}, {**about, "run": None})
    if lines := [*rules, *differences(before.get("run", {}), about["run"])]:
        raise UserError(
            "\n".join([f"{folder} contains another study:", *lines, "Restore these settings, or choose another -o"])
        )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns a line "NAME: was OLD, is now NEW" for each key whose values in `before` and `now` differ."""
    names = dict.fromkeys([*before, *now])
    return [f"  {n}: was {before.get(n)!r}, is now {now.get(n)!r}" for n in names if before.get(n) != now.get(n)]
