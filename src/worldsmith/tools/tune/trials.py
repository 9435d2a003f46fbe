"""Runs the trials of a study, sequentially or in parallel, until the requested number is reached.

With N parallel trials, trial k is selected and pruned with the results of trials up to k - N only. So it does not
depend on the order in which the others end.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from worldsmith.config.errors import UserError
from worldsmith.distributed.stop_signals import PREEMPTED
from worldsmith.files.locks import in_use
from worldsmith.monitor.terminal_text import print_message
from worldsmith.planning.plan import least_ranks
from worldsmith.tools.tune.record import RUNS, Record, ended
from worldsmith.tools.tune.setup import StudySetup
from worldsmith.tools.tune.space import as_words
from worldsmith.tools.tune.strategy import ExhaustedError, PruningDecision, TrialPlan
from worldsmith.tools.tune.trial_run import TrialRun, environment_of, visible_devices

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

POLL = 0.2
"""Seconds between two checks of the running trials."""
NOT_FINITE = "the metric is not finite"
FAILURES = 5
"""Number of consecutive failed trials that stops the study."""


@dataclass(slots=True)
class RunningTrial:
    """Trial that has a slot but no result yet: its plan, its run, and the object that decides on its pruning."""

    plan: TrialPlan
    run: TrialRun
    pruning: PruningDecision


@dataclass(slots=True)
class Trials:
    """Runs the trials of a study in parallel slots, and records their results."""

    record: Record
    setup: StudySetup
    changed: Callable[[], None]
    """Callback without arguments, called after each trial that has been recorded."""
    at_work: dict[int, RunningTrial] = field(default_factory=dict)
    waiting: dict[int, FrozenTrial] = field(default_factory=dict)
    """Ended trials that are not recorded yet, because a trial with a lower number has not ended."""
    told: set[int] = field(default_factory=set)
    """Numbers of trials for which a message about a run folder in use was printed."""
    failed: int = 0
    """Number of consecutive failed trials in this command."""

    def work(self, asked: Callable[[], str | None], deadline: float = math.inf) -> str | None:
        """Runs trials until the number of trials in the config has ended. An exception kills the running trials.

        Args:
            asked: Function that returns a text if the command was requested to stop, else None.
            deadline: Time, as of `time.monotonic()`, after which no trial starts.

        Returns:
            None if all trials have ended. Otherwise "stopped" (by a signal), "time" (`deadline`) or "exhausted" (no new
            settings were suggested).

        Raises:
            UserError: If the baseline or several trials in a row fail, or if no settings can run.
        """
        ending: str | None = None
        try:
            while True:
                if asked():
                    ending = "stopped"
                    for trial in self.at_work.values():
                        trial.run.ask_to_stop()
                elif time.monotonic() > deadline:
                    ending = ending or "time"
                for trial in list(self.at_work.values()):
                    ending = self.advance(trial) or ending
                try:
                    while ending is None and self.may_start():
                        self.start()
                except ExhaustedError:
                    ending = "exhausted"
                if not self.at_work and (ending or self.next >= self.setup.config.trials):
                    return ending if self.next < self.setup.config.trials else None
                time.sleep(POLL)
        finally:
            for trial in self.at_work.values():
                trial.run.kill()

    @property
    def next(self) -> int:
        """Number of the trial that starts next; trial 0 is the first."""
        return len(self.record.finished) + len(self.waiting) + len(self.at_work)

    def may_start(self) -> bool:
        """Returns whether the next trial may start.

        It may start if fewer trials than requested were started, a slot is free, and the results that select it exist.
        """
        return (
            self.next < self.setup.config.trials
            and len(self.at_work) < self.setup.config.parallel
            and self.next < len(self.record.finished) + self.setup.config.parallel
        )

    def start(self) -> None:
        """Assigns a free slot to the next trial, and selects its settings unless an earlier command has stored them.

        `advance` later starts the training process.

        Raises:
            ExhaustedError: If all suggested settings were those of earlier trials.
            UserError: If no suggested settings can run.
        """
        number = self.next
        tried = {n: plan.settings for n in range(number) if (plan := self.plan(n))}
        known = self.known(number)
        plan = self.record.plan(number) or self.setup.strategy.plan(
            number, self.setup.space, known, tried, self.setup.refusal
        )
        self.record.keep_plan(plan)
        slot = next(
            n for n in range(self.setup.config.parallel) if all(n != trial.run.slot for trial in self.at_work.values())
        )
        pruning = self.setup.strategy.start_pruning(known, self.setup.validations(plan.settings))
        self.at_work[number] = RunningTrial(plan, self.make_run(plan, slot), pruning)

    def plan(self, number: int) -> TrialPlan | None:
        """Returns the plan of trial `number`; None if no slot was assigned to it."""
        return self.at_work[number].plan if number in self.at_work else self.record.plan(number)

    def known(self, number: int) -> list[FrozenTrial]:
        """Returns the earlier trials that the selection of trial `number` may use.

        With N parallel trials, the latest N - 1 of the earlier trials have no results and the state "running", even if
        they have ended.
        """
        done = self.record.finished[: max(0, number - self.setup.config.parallel + 1)]
        plans = (self.plan(n) for n in range(len(done), number))
        return [*done, *(plan.at_work() for plan in plans if plan)]

    def advance(self, trial: RunningTrial) -> str | None:
        """Starts a trial when its run folder is not in use, stops it if it is pruned, and stores its result at its end.

        It is called repeatedly until the trial has ended. Returns "stopped" if the run was stopped by a signal that was
        not sent because of pruning, else None.
        """
        number, run = trial.plan.number, trial.run
        if run.process is None:
            if run.asked:
                del self.at_work[number]
            elif (holder := in_use(run.folder)) is None:
                run.start(self.environment(run.slot))
            elif number not in self.told:
                self.told.add(number)
                print_message(f"trial {number} is waiting for its run folder {run.folder}: {holder}")
            return None
        code = run.code()
        self.report_validations(trial)
        if code is None:
            if not (number == 0 or trial.pruning.should_continue):
                run.ask_to_stop()
            return None
        should_continue = number == 0 or trial.pruning.should_continue
        if should_continue and code == PREEMPTED:
            del self.at_work[number]
            return "stopped"
        if should_continue and code == 0 and run.start_next(self.environment(run.slot)):
            return None
        del self.at_work[number]
        self.waiting[number] = self.outcome(trial, code, pruned=not should_continue)
        self.record_ended()
        return None

    def report_validations(self, trial: RunningTrial) -> None:
        """Passes new validation metrics of a trial to its pruning decision, until the trial is pruned."""
        pruning = trial.pruning
        for value in trial.run.values()[len(pruning.reported) :]:
            if not pruning.should_continue and trial.plan.number > 0:
                return
            pruning.report(value)

    def outcome(self, trial: RunningTrial, code: int, *, pruned: bool) -> FrozenTrial:
        """Returns the result of a trial that has ended, as an Optuna trial.

        A trial whose metric is not finite has the state "failed", without an exception.

        Args:
            trial: The trial.
            code: Exit code of the trial's last process.
            pruned: Whether the trial was stopped because it was pruned.

        Raises:
            UserError: If the baseline has failed.
        """
        run, pruning, value, reason = trial.run, trial.pruning, None, None
        if pruned:
            reason = f"worse than other trials at validation {len(pruning.reported)}"
        elif code:
            reason = run.reason()
        else:
            try:
                value = self.score(run)
            except UserError as error:
                reason = str(error)
        if reason and not pruned and trial.plan.number == 0:
            raise UserError(f"trial 0, the baseline, has failed: {reason}. Its log is {run.log}")
        state = "pruned" if pruned else "failed" if value is None else "complete"
        reason = NOT_FINITE if state == "failed" and reason is None else reason
        reported = pruning.reported
        if pruned and not math.isfinite(reported[-1]):
            state, reason = "failed", f"{NOT_FINITE} at validation {len(reported)}"
        return ended(
            trial.plan,
            state,
            value=value if state == "complete" else reported[-1] if state == "pruned" else None,
            reported=reported,
            notes=pruning.notes,
            reason=reason,
            seconds=run.seconds,
        )

    def record_ended(self) -> None:
        """Records ended trials in the order of their numbers. Raises UserError after `FAILURES` failures in a row."""
        while (number := len(self.record.finished)) in self.waiting:
            trial = self.waiting.pop(number)
            self.record.add(trial)
            self.failed = self.failed + 1 if trial.state.name == "FAIL" else 0
            self.delete_checkpoints()
            self.changed()
            if self.failed >= FAILURES:
                raise UserError(
                    f"{FAILURES} trials in a row have failed, the last one: {trial.user_attrs['reason']}. Fix the "
                    "cause; the same command then continues with new trials"
                )

    def delete_checkpoints(self) -> None:
        """Deletes the checkpoints of ended trials except the baseline and the best, unless the config keeps all."""
        best = self.record.best
        for number in () if self.setup.config.checkpoints == "all" else range(1, len(self.record.finished)):
            checkpoints = self.record.path(number) / "checkpoints"
            if (best is None or number != best.number) and checkpoints.is_dir():
                shutil.rmtree(checkpoints, ignore_errors=True)

    def make_run(self, plan: TrialPlan, slot: int) -> TrialRun:
        """Returns the run of a trial for its plan and the index of its slot; starts no process."""
        config, source, folder = self.setup.config, self.setup.source, self.record.path(plan.number)
        words = as_words(plan.settings)
        processes = least_ranks(source.load(words).tree) if words else self.setup.processes
        job = {"project": self.record.folder.absolute().name, "group": RUNS, "name": folder.name, "folder": ""}
        words += as_words({f"job.{name}": value for name, value in job.items()})
        after = ["evaluate", str(folder), "-o", f"{folder}/evaluation", "--json", "--", *config.evaluate]
        command = source.command(words, processes=processes)
        return TrialRun(folder, command, config.metric, slot=slot, after=after if config.evaluate else ())

    def environment(self, slot: int) -> dict[str, str]:
        """Returns the environment variables for the processes of the trial in a slot."""
        parallel, root = self.setup.config.parallel, self.record.folder.absolute().parent
        devices = visible_devices() if parallel > 1 else []
        return environment_of(slot, parallel, root, devices, self.setup.processes)

    def score(self, run: TrialRun) -> float | None:
        """Returns the objective value of a trial run that has ended; None if it is not finite.

        It is the metric of the evaluation or of the last validation; of the best validation if the run keeps the best
        weights. Raises UserError if the run does not have the metric.
        """
        config, direction = self.setup.config, self.setup.direction
        figures = run.facts() if config.evaluate else dict.fromkeys(run.validations.names)
        if config.metric not in figures:
            raise UserError(
                f"the run has no metric '{config.metric}'; available: {', '.join(sorted(figures)) or 'none'}"
            )
        values = [figures[config.metric]] if config.evaluate else run.values()
        checkpoint = self.setup.base.tree.checkpoint
        keeps_best = checkpoint.keep_best == config.metric and checkpoint.best_mode == direction
        return last_or_best(values, best=(min if direction == "min" else max) if keeps_best else None)


def last_or_best(values: Sequence[float | None], *, best: Callable[..., float] | None) -> float | None:
    """Returns the last value (None: not finite), or the best finite one if `best` is given.

    `best` is the function min or max. If no value is finite, the last value is returned.
    """
    finite = [value for value in values if value is not None]
    return best(finite) if best and finite else values[-1]
