"""`worldsmith tune SOURCE`: searches settings of a run, by trials that are runs with other settings."""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from worldsmith.actions.action import Action, Result
from worldsmith.actions.find_parent import PARENT
from worldsmith.config.declare.ranges import Count, PositiveFactor, Range, Seed
from worldsmith.config.declare.search import Example
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.write.convert_config import convert
from worldsmith.distributed.stop_signals import PREEMPTED, StopSignals
from worldsmith.files.atomic import write_text
from worldsmith.monitor.lineage import read_lineage, record_of, write_lineage
from worldsmith.monitor.terminal_text import print_message
from worldsmith.planning.plan import least_ranks
from worldsmith.tools.tune.final import run_in_child
from worldsmith.tools.tune.record import BEST, PAGE, RUNS, TRIALS, Record, lock_study, require_same_study, trial_as_line
from worldsmith.tools.tune.setup import StudySetup
from worldsmith.tools.tune.source import launched
from worldsmith.tools.tune.space import as_words
from worldsmith.tools.tune.strategy import PRUNERS, SAMPLERS, ExhaustedError
from worldsmith.tools.tune.trial_run import program
from worldsmith.tools.tune.trials import Trials

BEST_RUN = "best.yaml"
"""Config of the run with the best settings, for `worldsmith train`."""


class Tune(Action):
    """Searches for good settings of a run. Each trial is a run; trial 0 is the unchanged run (the baseline).

    SOURCE is a recipe's name, a recipe TOML, a YAML config, a training spec of Cosmos-RL or TAO, or a run folder;
    overrides change it, as for `worldsmith train`. Searched settings are the fields that are marked as searchable, and
    those of --search, such as optimizer.lr=log:1e-6..1e-3. The same command continues a study that was stopped or
    killed.
    """

    places: ClassVar[tuple[str, ...]] = ("source", "words")
    aliases: ClassVar[Mapping[str, str]] = {"-o": "out", "--output": "out", PARENT: "parent_run"}

    class Config(Action.Config):
        source: Annotated[str, Example("videophy2_nano_tiny")]
        """Run to tune: recipe name, recipe TOML, YAML config, training spec of Cosmos-RL or TAO, or run folder."""
        words: list[str] = field(default_factory=list)
        """Overrides of the run, such as trainer.max_iter=200."""
        parent_run: Annotated[str | None, Example("outputs/train/demo/questions/first:best")] = None
        """Run or result with the initial weights of every trial, as in `worldsmith train`; null: parent_job_id if the
        source is a spec."""
        out: Annotated[str | None, Example("studies/first")] = None
        """Folder of the study; null: `tune` in the results_dir, or else the train.output_dir, of a spec."""
        search: list[str] = field(default_factory=list)
        """Field to search, with its range: PATH=LOW..HIGH, log:LOW..HIGH, pow2:LOW..HIGH, A|B|C, A|B@3 (B three times
        as likely) or OTHER*A|B (multiples of the field OTHER), optionally followed by "if PATH=VALUE"."""
        keep: list[str] = field(default_factory=list)
        """Fields marked as searchable that keep their value and are not searched."""
        marked: bool = True
        """Whether the fields that are marked as searchable are searched in addition to those of `search`."""
        trials: Annotated[int, Range(ge=2)] = 20
        """Total number of trials, including the baseline; increase it to continue a study."""
        hours: PositiveFactor | None = None
        """Time limit of this command in hours, after which no trial starts; null: no limit."""
        parallel: Count = 1
        """Number of parallel trials. Each has one GPU per process; without GPUs, they share the CPU cores equally."""
        metric: str = "val/loss"
        """A validation metric, or with `evaluate` a metric of `worldsmith evaluate`."""
        direction: Literal["min", "max"] | None = None
        """Whether the smallest or the largest value is the best; null: the smallest for a loss or an error."""
        evaluate: list[str] = field(default_factory=list)
        """Settings of `worldsmith evaluate`, such as dataset.path=DIR, which evaluates the run of each trial."""
        final_data: list[str] = field(default_factory=list)
        """Overrides that select the data of the final evaluation, which no trial sees: of dataloader_val (or of
        `evaluate`), such as dataset.path=DIR, or of keys of a spec."""
        sampler: SAMPLERS = "tpe"
        """Optuna sampler, which selects the settings of each trial."""
        startup: Count = 10
        """Number of random trials before the sampler uses their values."""
        pruner: PRUNERS = "none"
        """Optuna pruner, which stops trials whose validations are worse than those of others."""
        reduction: Annotated[int, Range(ge=2)] = 3
        """Reduction factor of asha and hyperband: one of this many trials continues at each rung."""
        least_validations: Count = 1
        """Min number of validations before a trial can be pruned."""
        seed: Seed = 0
        """Seed of the search; each run has a seed of its own."""
        request: str = ""
        """Request in natural language, such as "plain training"; the override automl_policy=auto|off has precedence."""
        schemas: str | None = None
        """Folder that `worldsmith schema --all` wrote; without a readable schema and template in it, the run is trained
        without a search."""
        checkpoints: Literal["best", "all"] = "best"
        """Which trials keep their checkpoints: only the best and the baseline, or all."""

    config: Config

    def run(self) -> Result:
        """Runs the study and returns its results. Raises UserError.

        If `automl_policy` or the request in natural language disables the search, the training command replaces the
        process.
        """
        config, setup = self.config, self.setup
        if not setup.route.search:
            print_message(setup.route.message)
            words = program(setup.source.command())
            os.execv(words[0], words)
        folder = setup.folder
        setup.check()
        deadline = math.inf if config.hours is None else time.monotonic() + 3600 * config.hours
        require_same_study(folder, setup.identity)
        if not (folder / RUNS / "0000.json").exists():  # otherwise trial 0 has been started
            self.preflight()
        if config.final_data:
            setup.final.check()
        with lock_study(folder), StopSignals() as stop:
            record = Record(folder, setup.identity, setup.direction)
            results = Results(record, setup)
            ending = Trials(record, setup, results.changed).work(lambda: stop.asked, deadline)
            best = record.best
            if ending != "stopped" and config.final_data and best is not None:
                results.final = setup.final.measure(record, best)
            results.at_work = False
            facts = results.write()
            results.write_record()
        return Result(list(results.summary_lines(ending)), facts, PREEMPTED if ending == "stopped" else 0)

    def plan(self) -> Iterator[str]:
        config, setup = self.config, self.setup
        yield f"policy      {setup.route.message}"
        if not setup.route.search:
            yield f"run         worldsmith {shlex.join(setup.source.command())}"
            return
        setup.check()
        require_same_study(setup.folder, setup.identity)
        yield f"study       {setup.folder}: {config.trials} trials, {config.parallel} in parallel"
        yield f"run         {setup.base.source}"
        if setup.processes > 1:
            yield f"processes   {setup.processes} for each trial (worldsmith launch --nproc-per-node {setup.processes})"
        yield f"best        the {'smallest' if setup.direction == 'min' else 'largest'} {config.metric}"
        for dimension in setup.space.dimensions:
            yield f"search      {dimension}"
        yield from (f"kept        {line}" for line in setup.space.kept)
        yield "trial 0     the baseline"
        yield from self.first_trials()
        notes = (line for line in self.preflight() if line.startswith("note "))
        yield from (f"note        {note.removeprefix('note').strip()}" for note in notes)
        if config.final_data:
            setup.final.check()
            yield f"final data  {' '.join(config.final_data)}"

    def first_trials(self) -> Iterator[str]:
        """Yields one output line with the settings of each of the first trials after the baseline, at most three."""
        config, setup = self.config, self.setup
        known = [setup.strategy.plan(0, setup.space, [], {}, setup.refusal).at_work()]
        tried: dict[int, dict[str, Any]] = {0: {}}
        for number in range(1, min(config.trials, config.startup, 4)):
            try:
                plan = setup.strategy.plan(number, setup.space, known, tried, setup.refusal)
            except ExhaustedError:
                yield "no other configuration can be sampled"
                return
            refused = f" ({len(plan.refused)} configurations before it were rejected)" if plan.refused else ""
            yield f"trial {number}     {' '.join(as_words(plan.settings))}{refused}"
            known.append(plan.at_work())
            tried[number] = plan.settings

    def preflight(self) -> list[str]:
        """Returns the output lines of a dry run of the baseline. Raises UserError if the run would not start."""
        tree, folder, processes = self.setup.base.tree, self.setup.folder / RUNS / "0000", self.setup.processes

        def lines() -> list[str]:
            from worldsmith.actions.dry_run import plan_run

            return list(plan_run(tree, folder, world_size=processes))

        return run_in_child(lines)

    @cached_property
    def setup(self) -> StudySetup:
        return StudySetup(self.config)


def format_setting(value: float | None) -> str:
    """Returns a metric as text with 6 significant digits; "none" for None."""
    return "none" if value is None else f"{value:.6g}"


@dataclass(slots=True)
class Results:
    """Results of a study: writes its files and its HTML report, and formats the output of the command."""

    record: Record
    setup: StudySetup
    at_work: bool = True
    final: dict[str, Any] | None = None
    """Metric on the final data of the best trial (`best`) and of the baseline (`as_it_is`); None: not measured."""

    def changed(self) -> None:
        """Prints the result of the last ended trial and updates the files of the study."""
        record, best = self.record, self.record.best
        trial = record.finished[-1]
        line = trial_as_line(trial, record.path(trial.number))
        value = f"{self.setup.config.metric} {format_setting(line['value'])}" if line["value"] is not None else ""
        what = ", ".join(filter(None, [line["state"], value, line["reason"]]))
        beside = (
            f"; best: trial {best.number}, {format_setting(best.value)}" if best and best.number != trial.number else ""
        )
        settings = " ".join(line["words"]) or "baseline"
        print_message(f"trial {trial.number} of {self.setup.config.trials}: {what} ({settings}){beside}")
        self.write()

    def write(self) -> dict[str, Any]:
        """Writes trials.jsonl and, if a trial is complete, best.json, best.yaml and the HTML report.

        Returns the content of best.json; only "metric" and "trials" (numbers by state) if no trial is complete.
        """
        record, best = self.record, self.record.best
        record.write_lines()
        if best is None:
            return {"metric": self.setup.config.metric, "trials": record.counts()}
        line = trial_as_line(best, record.path(best.number))
        facts = {
            "metric": self.setup.config.metric,
            "direction": self.setup.direction,
            **{name: line[name] for name in ("trial", "value", "settings", "words", "run")},
            "as_it_is": record.finished[0].value,
            "trials": record.counts(),
            "final": self.final,
        }
        write_text(record.folder / BEST, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
        loaded = self.setup.source.load(line["words"], keep_unset=True)
        write_text(record.folder / BEST_RUN, convert(loaded, "yaml").text)
        self.write_page(facts)
        return facts

    def write_record(self) -> None:
        """Writes the lineage record of the best settings, with the inputs of the best trial's run.

        Writes nothing if no trial is complete, or if that run has no lineage record.
        """
        record, best = self.record, self.record.best
        run = record.path(best.number) if best else None
        if run is None or (known := record_of(run)) is None:
            return
        outputs = [TRIALS, BEST, BEST_RUN, f"{RUNS}/{run.name}"]
        inputs = read_lineage(known).inputs
        write_lineage(record.folder, action="tune", settings=to_dict(self.setup.config), inputs=inputs, outputs=outputs)

    def write_page(self, facts: Mapping[str, Any]) -> None:
        """Writes the HTML report of the study; `facts` is the content of best.json."""
        from worldsmith.tools.tune.page import write_page

        record, config = self.record, self.setup.config
        names = ("source", "sampler", "startup", "pruner", "reduction", "least_validations", "seed", "parallel")
        rules = {"metric": config.metric, "direction": self.setup.direction, **{n: getattr(config, n) for n in names}}
        write_page(
            record.folder / PAGE,
            name=record.folder.absolute().name,
            space=self.setup.space,
            lines=record.lines(),
            facts=facts,
            rules={**rules, "words": " ".join(config.words), "final_data": " ".join(config.final_data)},
            importances=record.importances(),
            command=self.next,
            at_work=self.at_work,
        )

    @property
    def next(self) -> str:
        """Command line that trains with the best settings: a training spec with overrides, or best.yaml."""
        best = self.record.best
        words = [] if best is None else trial_as_line(best, self.record.path(best.number))["words"]
        processes = least_ranks(self.setup.source.load(words).tree)
        if best is not None and self.setup.source.is_spec:
            return f"worldsmith {shlex.join(self.setup.source.command(words, processes=processes))}"
        return f"worldsmith {shlex.join(launched(['train', str(self.record.folder / BEST_RUN)], processes))}"

    def summary_lines(self, ending: str | None) -> Iterator[str]:
        """Yields the final output lines of the command; `ending` is the reason of an early end, as in `Trials.work`."""
        config, record, counts, best = self.setup.config, self.record, self.record.counts(), self.record.best
        ended = ", ".join(f"{counts[name]} {name}" for name in ("complete", "pruned", "failed"))
        draws = f"; {counts['refused_draws']} configurations were rejected" if counts["refused_draws"] else ""
        yield f"{len(record.finished)} of {self.setup.config.trials} trials: {ended}{draws}"
        if ending == "time":
            yield f"no more trials are started after {config.hours:g} hours; run the same command again to continue"
        if ending == "exhausted":
            yield "all configurations of the search have been tried"
        if ending == "stopped":
            yield "stopped; run the same command again to continue"
        if best is None or ending == "stopped":
            return
        first = record.finished[0]
        values = f"{format_setting(best.value)}; baseline: {format_setting(first.value)}"
        yield f"best: trial {best.number}, {config.metric} {values}"
        for word in trial_as_line(best, record.path(best.number))["words"]:
            yield f"  {word}"
        if self.final is not None:
            values = f"{format_setting(self.final['best'])}; baseline: {format_setting(self.final['as_it_is'])}"
            yield f"on data that no trial has seen: {values}"
        elif best.number:
            yield (
                f"the best value was selected from {counts['complete']} values on the same data, so it is too "
                "optimistic: use --final-data to measure it on data that no trial has seen"
            )
        yield f"next: {self.next}"
        yield f"report: {record.folder / PAGE}"
