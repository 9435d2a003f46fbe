"""Decisions by Optuna: the settings of each trial, and whether it is pruned.

Each decision uses a new in-memory study with the results known at that moment, and a sampler seeded for that decision.
It therefore depends only on the seed, the trial number and those results, even if the search was killed and restarted.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.config.errors import UserError
from worldsmith.tools.tune.space import Space

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

SAMPLERS = Literal["tpe", "random"]
Direction = Literal["minimize", "maximize"]
"""Direction of the objective, as named by Optuna."""
PRUNERS = Literal["none", "asha", "hyperband", "median"]
TRIES = 100
"""Max rejected or repeated configurations in a row before the search gives up. The second half is sampled at random."""


class ExhaustedError(Exception):
    """Raised if no new settings are found, because all suggested ones have been tried already."""


@dataclass(slots=True)
class TrialPlan:
    """Plan of a trial: its settings (values by config path), and Optuna's suggestions by dimension name (`drawn`)."""

    number: int
    settings: dict[str, Any] = field(default_factory=dict)
    drawn: dict[str, Any] = field(default_factory=dict)
    distributions: dict[str, BaseDistribution] = field(default_factory=dict)
    refused: list[dict[str, Any]] = field(default_factory=list)
    """Configurations that were rejected before this trial, as dicts of `settings` (values by path) and `reason`."""

    def to_json(self) -> str:
        """Returns the plan as JSON, the content of its file."""
        from optuna.distributions import distribution_to_json

        kinds = {name: distribution_to_json(kind) for name, kind in self.distributions.items()}
        data = {"trial": self.number, "settings": self.settings, "drawn": self.drawn, "distributions": kinds}
        return json.dumps({**data, "refused": self.refused}, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TrialPlan:
        """Parses the JSON of a plan's file."""
        from optuna.distributions import json_to_distribution

        data = json.loads(text)
        kinds = {name: json_to_distribution(kind) for name, kind in data["distributions"].items()}
        return cls(data["trial"], data["settings"], data["drawn"], kinds, data["refused"])

    def at_work(self) -> FrozenTrial:
        """Returns an Optuna trial in the state "running" with the suggestions of this plan."""
        from optuna.trial import TrialState, create_trial

        return create_trial(state=TrialState.RUNNING, params=self.drawn, distributions=self.distributions)


@dataclass(frozen=True, slots=True)
class Strategy:
    """Settings of the sampler, which selects the settings of trials, and of the pruner, which stops trials early.

    `most` is the number of validations of the baseline.
    """

    direction: Literal["min", "max"]
    seed: int = 0
    sampler: SAMPLERS = "tpe"
    startup: int = 10
    pruner: PRUNERS = "none"
    reduction: int = 3
    least_validations: int = 1
    most: int = 1

    def plan(
        self,
        number: int,
        space: Space,
        known: Sequence[FrozenTrial],
        tried: Mapping[int, Mapping[str, Any]],
        refusal: Callable[[Mapping[str, Any]], str | None],
    ) -> TrialPlan:
        """Selects the settings of trial `number`; trial 0 is the baseline.

        Args:
            number: Index of the trial.
            space: Search space.
            known: Earlier trials whose results the selection uses; trials without results are in the state "running".
            tried: Settings of earlier trials, by number.
            refusal: Function that returns why a run with the given settings (by path) cannot start, None if it can.

        Raises:
            ExhaustedError: If all suggested settings were those of earlier trials.
            UserError: If no suggested settings can run.
        """
        if number == 0:  # the baseline
            drawn, kinds = space.untouched()
            return TrialPlan(0, {}, drawn, kinds)

        def values(settings: Mapping[str, Any]) -> str:
            return json.dumps([space.value(path, settings) for path in space.paths])

        before = {values(settings): number for number, settings in reversed(list(tried.items()))}
        refused: list[dict[str, Any]] = []
        for attempt in range(TRIES):
            study = self._study(known, sampler=self._sampler(number, attempt))
            trial = study.ask()
            settings = space.suggest(trial)
            same = before.get(values(settings))
            reason = f"the same as trial {same}" if same is not None else refusal(settings)
            if reason is None:
                return TrialPlan(number, settings, trial.params, trial.distributions, refused)
            refused.append({"settings": settings, "reason": reason})
        others = [draw for draw in refused if not draw["reason"].startswith("the same as trial")]
        if not others:
            raise ExhaustedError
        told = others[-1]
        raise UserError(
            f"trial {number}: none of {TRIES} sampled configurations can run; the last one, {told['settings']}: "
            f"{told['reason']}. Restrict the search to settings that are valid together, with conditions if "
            "necessary"
        )

    def start_pruning(self, known: Sequence[FrozenTrial], most: int | None = None) -> PruningDecision:
        """Returns an object that decides on the pruning of a trial.

        Args:
            known: Results of earlier trials that the decision may use.
            most: Number of validations of the trial; None: as many as in the baseline.
        """
        return PruningDecision(self._study(known, pruner=self._pruner()), most or self.most)

    def _study(
        self, known: Sequence[FrozenTrial], *, sampler: BaseSampler | None = None, pruner: BasePruner | None = None
    ) -> Study:
        from optuna import create_study
        from optuna.samplers import RandomSampler

        direction: Direction = "minimize" if self.direction == "min" else "maximize"
        # Hyperband distinguishes its brackets by the name and the number.
        study = create_study(
            study_name="tune", direction=direction, sampler=sampler or RandomSampler(seed=0), pruner=pruner
        )
        study.add_trials(known)
        return study

    def _sampler(self, number: int, attempt: int) -> BaseSampler:
        from optuna.samplers import RandomSampler, TPESampler

        seed = int.from_bytes(hashlib.sha256(f"{self.seed} {number} {attempt}".encode()).digest()[:4], "little")
        if self.sampler == "random" or attempt >= TRIES // 2:
            return RandomSampler(seed=seed)
        return TPESampler(seed=seed, n_startup_trials=self.startup)

    def _pruner(self) -> BasePruner:
        """Returns the Optuna pruner for these settings, whose resources are numbers of validations."""
        from optuna import pruners

        if self.pruner == "asha":
            return pruners.SuccessiveHalvingPruner(min_resource=self.least_validations, reduction_factor=self.reduction)
        if self.pruner == "hyperband":
            most = max(self.most, self.least_validations)
            return pruners.HyperbandPruner(
                min_resource=self.least_validations, max_resource=most, reduction_factor=self.reduction
            )
        if self.pruner == "median":
            return pruners.MedianPruner(n_startup_trials=self.startup, n_warmup_steps=self.least_validations)
        return pruners.NopPruner()


class PruningDecision:
    """Decides after each validation of a trial whether the trial continues; after the last one it always does.

    Args:
        study: Optuna study with the results that the decision may use.
        most: Number of validations of the trial.
    """

    def __init__(self, study: Study, most: int) -> None:
        self.study, self.most = study, most
        self.trial = study.ask()
        self.reported: list[float] = []
        self.should_continue = True

    def report(self, value: float | None) -> bool:
        """Adds the trial's next validation metric (None: not finite); returns whether the trial should continue."""
        self.reported.append(math.nan if value is None else value)
        self.trial.report(self.reported[-1], len(self.reported))
        self.should_continue = len(self.reported) >= self.most or not self.trial.should_prune()
        return self.should_continue

    @property
    def notes(self) -> dict[str, Any]:
        """Optuna system attributes of the trial, which the pruner reads when it decides on later trials."""
        return self.study.trials[-1].system_attrs
