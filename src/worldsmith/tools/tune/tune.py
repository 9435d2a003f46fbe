"""`worldsmith tune SOURCE`: searches for settings of a run, by runs that try them."""

from __future__ import annotations

import importlib.util
import math
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from worldsmith.actions.action import Action, Result
from worldsmith.actions.parents import PARENT
from worldsmith.config.declare.ranges import Count, PositiveFactor, Range, Seed
from worldsmith.config.declare.search import Example
from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.tree.draft import Loaded
from worldsmith.config.tree.plain import flatten, to_dict
from worldsmith.dialects.cosmos_rl.policy import Route, route
from worldsmith.dialects.cosmos_rl.train.sources import TEST_SIZE
from worldsmith.distributed.stop_signals import PREEMPTED, StopSignals
from worldsmith.distributed.world import require_devices
from worldsmith.monitor.terminal_text import print_message
from worldsmith.tools.tune.final import FinalData, in_own_process
from worldsmith.tools.tune.record import RUNS, Record, held, require_same_study
from worldsmith.tools.tune.results import Results
from worldsmith.tools.tune.source import Source, processes_of
from worldsmith.tools.tune.space import Space, as_words
from worldsmith.tools.tune.strategy import PRUNERS, SAMPLERS, ExhaustedError, Plan, Strategy
from worldsmith.tools.tune.trial_run import TrialRun, environment_of, program, visible_devices
from worldsmith.tools.tune.trials import Trials, last_or_best
from worldsmith.training.run_folder import given_root

LOSSES = ("loss", "perplexity", "error")
"""What is better when it is less, as a part of a figure's name."""


class Tune(Action):
    """Searches for settings of a run: trials are runs of their own, of which trial 0 is the run as it is.

    SOURCE is a recipe's name, a recipe TOML, a YAML tree, a nested spec or a run folder, and WORDS change it, as those
    of `worldsmith train`. What is searched: the fields that are marked for it, and those of --search, such as
    optimizer.lr=log:1e-6..1e-3. The same command goes on with a study that was stopped or killed.
    """

    places: ClassVar[tuple[str, ...]] = ("source", "words")
    aliases: ClassVar[Mapping[str, str]] = {"-o": "out", "--output": "out", PARENT: "parent_run"}

    class Config(Action.Config):
        source: Annotated[str, Example("videophy2_nano_tiny")]
        """The run: a recipe's name, a recipe TOML, a YAML tree, a nested spec or a run folder."""
        words: list[str] = field(default_factory=list)
        """Changes of the run, such as trainer.max_iter=200."""
        parent_run: Annotated[str | None, Example("outputs/train/demo/questions/first:best")] = None
        """A run or result whose weights every trial starts from, as in `worldsmith train`; parent_job_id of a spec."""
        out: Annotated[str | None, Example("studies/first")] = None
        """Folder of the study; null: `tune` in the results_dir, or else the train.output_dir, of a spec."""
        search: list[str] = field(default_factory=list)
        """PATH=LOW..HIGH, log:LOW..HIGH, pow2:LOW..HIGH, A|B|C, A|B@3 or OTHER*A|B, then perhaps "if PATH=VALUE"."""
        keep: list[str] = field(default_factory=list)
        """Marked fields that are not searched."""
        marked: bool = True
        """Whether the fields that are marked for it are searched beside those of `search`."""
        trials: Annotated[int, Range(ge=2)] = 20
        """Trials in all, with the run as it is; a greater number goes on."""
        hours: PositiveFactor | None = None
        """No trial starts after so long a time of this command; null: no limit."""
        parallel: Count = 1
        """Trials at work at once: each has a GPU for each of its processes, or its part of the processors."""
        metric: str = "val/loss"
        """A figure of the validation, or with `evaluate` one of `worldsmith evaluate`."""
        direction: Literal["min", "max"] | None = None
        """Whether the least or the greatest value is the best; null: the least of a loss or an error."""
        evaluate: list[str] = field(default_factory=list)
        """Settings of `worldsmith evaluate`, such as dataset.path=DIR: it measures what each trial has made."""
        final_data: list[str] = field(default_factory=list)
        """Changes of dataloader_val (of `evaluate`), such as dataset.path=DIR, or of a spec's own keys: data that no
        trial sees, for the end."""
        sampler: SAMPLERS = "tpe"
        """What draws the trials, of Optuna's."""
        startup: Count = 10
        """Trials that are drawn at random before the sampler learns from their values."""
        pruner: PRUNERS = "none"
        """What ends trials that are behind others at a validation, of Optuna's."""
        reduction: Annotated[int, Range(ge=2)] = 3
        """One of so many goes on at each rung of asha and hyperband."""
        least_validations: Count = 1
        """No trial ends before so many validations."""
        seed: Seed = 0
        """Seed of what is drawn; the runs have their own."""
        request: str = ""
        """What was asked for, in words, such as "plain training": automl_policy=auto|off among `words` counts more."""
        schemas: str | None = None
        """Folder of `worldsmith schema --all`: without a readable schema and template in it there is no search."""
        checkpoints: Literal["best", "all"] = "best"
        """Which trials keep their checkpoints: the best and the run as it is, or all."""

    config: Config

    def run(self) -> Result:
        """Raises UserError. Where the policy asks for no search, the process becomes that of the training."""
        if not self.route.search:
            print_message(self.route.said)
            words = program(self.source.command())
            os.execv(words[0], words)
        config, out = self.config, self.out
        self.check()
        deadline = math.inf if config.hours is None else time.monotonic() + 3600 * config.hours
        require_same_study(out, self.about)
        if not (out / RUNS / "0000.json").exists():  # else trial 0 has been started
            self.preflight()
        if config.final_data:
            self.final.check()
        with held(out), StopSignals() as stop:
            record = Record(out, self.about, self.direction)
            results = Results(record, config, self.source, self.space, self.direction)
            ending = self.trials(results).work(lambda: stop.asked, deadline)
            best = record.best
            if ending != "stopped" and config.final_data and best is not None:
                results.final = self.final.measure(record, best)
            results.at_work = False
            facts = results.write()
            results.write_record()
        return Result(list(results.tell(ending)), facts, PREEMPTED if ending == "stopped" else 0)

    def plan(self) -> Iterator[str]:
        yield f"policy      {self.route.said}"
        if not self.route.search:
            yield f"run         worldsmith {shlex.join(self.source.command())}"
            return
        self.check()
        require_same_study(self.out, self.about)
        config = self.config
        yield f"study       {self.out}: {config.trials} trials, {config.parallel} at once"
        yield f"run         {self.base.source}"
        if self.processes > 1:
            yield f"processes   {self.processes} for each trial (worldsmith launch --nproc-per-node {self.processes})"
        yield f"best        the {'least' if self.direction == 'min' else 'greatest'} {config.metric}"
        for dimension in self.space.dimensions:
            yield f"search      {dimension}"
        yield from (f"kept        {line}" for line in self.space.kept)
        yield "trial 0     the run as it is"
        yield from self.first_trials()
        yield from (f"note        {line.partition(' ')[2].strip()}" for line in self.preflight() if is_note(line))
        if config.final_data:
            self.final.check()
            yield f"final data  {' '.join(config.final_data)}"

    def first_trials(self) -> Iterator[str]:
        """What the first trials after trial 0 try."""
        config = self.config
        known = [self.strategy.plan(0, self.space, [], {}, self.refusal).at_work()]
        tried: dict[int, dict[str, Any]] = {0: {}}
        for number in range(1, min(config.trials, config.startup, 4)):
            try:
                plan = self.strategy.plan(number, self.space, known, tried, self.refusal)
            except ExhaustedError:
                yield "no more can be drawn that is not the same"
                return
            refused = f" ({len(plan.refused)} draws before it cannot run)" if plan.refused else ""
            yield f"trial {number}     {' '.join(as_words(plan.settings))}{refused}"
            known.append(plan.at_work())
            tried[number] = plan.settings

    def preflight(self) -> list[str]:
        """The dry run of the run as it is. Raises UserError for what would stop it before its first step."""
        tree, folder, processes = self.base.tree, self.out / RUNS / "0000", self.processes

        def lines() -> list[str]:
            from worldsmith.actions.dry_run import plan_run

            return list(plan_run(tree, folder, world_size=processes))

        return in_own_process(lines)

    @cached_property
    def out(self) -> Path:
        """Raises UserError where nothing names a folder."""
        if self.config.out:
            return Path(self.config.out)
        folder = self.given.output_folder()
        if not folder:
            raise UserError("no folder for the study: expected -o DIR, found none. Give it, or results_dir in a spec")
        return (given_root() or Path()) / os.path.expanduser(folder) / "tune"

    @cached_property
    def route(self) -> Route:
        """Whether there is a search at all. Raises UserError for a policy that there is not."""
        config = self.config
        return route(
            "train", config.words, request=config.request, folder=Path(config.schemas) if config.schemas else None
        )

    @cached_property
    def given(self) -> Source:
        """The source as the command names it."""
        return Source(self.config.source, self.route.words, self.config.parent_run)

    @cached_property
    def source(self) -> Source:
        """The source of the runs; those of a search are new runs. Raises ConfigError or UserError."""
        return self.given.with_parent_found().as_new_run() if self.route.search else self.given

    @cached_property
    def base(self) -> Loaded:
        """The run as it is. Raises ConfigError."""
        return self.source.load()

    @cached_property
    def processes(self) -> int:
        """Processes of each trial, as far as a search changes no parallel degree."""
        return processes_of(self.base.tree)

    @cached_property
    def space(self) -> Space:
        config = self.config
        return Space(self.base.tree, config.search, keep=config.keep, marked=config.marked, spec=self.source.spec)

    @cached_property
    def direction(self) -> Literal["min", "max"]:
        """Raises UserError for a figure whose name does not tell."""
        if self.config.direction is not None:
            return self.config.direction
        if any(part in self.config.metric.rpartition("/")[2].lower() for part in LOSSES):
            return "min"
        raise UserError(f"--metric {self.config.metric}: is less or more of it better? Add --direction min or max")

    @cached_property
    def strategy(self) -> Strategy:
        config = self.config
        return Strategy(
            direction=self.direction,
            seed=config.seed,
            sampler=config.sampler,
            startup=config.startup,
            pruner=config.pruner,
            reduction=config.reduction,
            least=config.least_validations,
            most=self.validations({}),
        )

    def validations(self, settings: Mapping[str, Any]) -> int:
        """How often a run with these settings validates."""
        loop = (self.source.load(as_words(settings)) if settings else self.base).tree.trainer
        return int(-(-loop.max_iter // loop.validation_iter))

    @cached_property
    def about(self) -> dict[str, Any]:
        """What makes this study another one than the next."""
        names = ("metric", "evaluate", "sampler", "startup", "pruner", "reduction", "least_validations", "seed")
        run = {path: value for path, value in flatten(to_dict(self.base.tree)).items() if not path.startswith("job.")}
        return {
            **{name: getattr(self.config, name) for name in names},
            "direction": self.direction,
            "search": [str(dimension) for dimension in self.space.dimensions],
            "run": run,
        }

    @cached_property
    def final(self) -> FinalData:
        config = self.config
        return FinalData(self.source, config.final_data, config.metric, config.evaluate)

    @cached_property
    def kept_best(self) -> bool:
        """Whether a run keeps the weights that were best by the metric, and not its last ones alone."""
        checkpoint = self.base.tree.checkpoint
        return bool(checkpoint.keep_best == self.config.metric and checkpoint.best_mode == self.direction)

    def check(self) -> None:
        """Raises UserError or ConfigError for what cannot be."""
        config, tree = self.config, self.base.tree
        if importlib.util.find_spec("optuna") is None:
            raise UserError("worldsmith tune needs Optuna: pip install 'worldsmith[tune]'")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        assert self.space.dimensions
        is_validation = config.metric.startswith(("val/", "val_ema/"))
        if is_validation and config.evaluate:
            raise UserError(f"--evaluate goes with a figure of its own, and {config.metric} is one of the validation")
        if not is_validation and not config.evaluate:
            raise UserError(
                f"--metric {config.metric}: a figure of the validation is called val/… or val_ema/…; one of "
                "`worldsmith evaluate` needs --evaluate, with what it is to measure on"
            )
        if is_validation and not (tree.trainer.run_validation and tree.dataloader_val is not None):
            remedy = "trainer.run_validation=true and dataloader_val"
            if self.source.is_spec:
                remedy = f"validation.enable=true, and {TEST_SIZE}=N to hold out N training records"
            raise UserError(f"--metric {config.metric}: the run does not validate; add {remedy}")
        if is_validation and config.metric.startswith("val_ema/") and not tree.model.config.ema.enabled:
            raise UserError(f"--metric {config.metric}: the run keeps no EMA weights (model.config.ema.enabled)")
        if config.pruner != "none" and not is_validation:
            raise UserError(f"--pruner {config.pruner} needs a figure of the validation as --metric")
        if config.pruner != "none" and tree.trainer.validation_iter >= tree.trainer.max_iter:
            raise UserError(
                f"--pruner {config.pruner}: a trial validates at its end alone; lower trainer.validation_iter "
                f"({tree.trainer.validation_iter}) under trainer.max_iter ({tree.trainer.max_iter})"
            )
        if "metrics" not in {type(callback).__qualname__.partition(".")[0].lower() for callback in callbacks(tree)}:
            raise UserError("the run writes no figures: it needs the callback metrics")
        if self.processes > 1:
            try:
                require_devices(self.processes)
            except ValueError as error:
                raise UserError(f"each trial: {error}") from None
        if config.parallel > 1 and 0 < len(visible_devices()) < config.parallel * self.processes:
            each = f" with {self.processes} processes each" if self.processes > 1 else ""
            raise UserError(
                f"--parallel {config.parallel}{each}: this machine has {len(visible_devices())} CUDA devices"
            )

    def refusal(self, settings: Mapping[str, Any]) -> str | None:
        """Why the run cannot be with these settings; None if it can, as far as its config tells."""
        try:
            self.source.load(as_words(settings))
        except ConfigError as error:
            problem = error.problems[0]
            return f"{problem.path}: {problem.message}" if problem.path else problem.message
        return None

    def trials(self, results: Results) -> Trials:
        config, record = self.config, results.record
        root, devices = record.folder.absolute().parent, visible_devices() if config.parallel > 1 else []
        return Trials(
            record,
            self.strategy,
            self.space,
            most=config.trials,
            parallel=config.parallel,
            make_run=lambda plan, slot: self.make_run(record, plan, slot),
            refusal=self.refusal,
            score=self.score,
            environment=lambda slot: environment_of(slot, config.parallel, root, devices, self.processes),
            changed=results.changed,
            validations=self.validations,
            keep_all=config.checkpoints == "all",
        )

    def make_run(self, record: Record, plan: Plan, slot: int) -> TrialRun:
        config, folder = self.config, record.path(plan.number)
        place = {"job.project": record.folder.absolute().name, "job.group": RUNS, "job.name": folder.name}
        place["job.folder"] = ""
        words = [*as_words(plan.settings), *as_words(place)]
        processes = processes_of(self.source.load(as_words(plan.settings)).tree) if plan.settings else self.processes
        after = ["evaluate", str(folder), "-o", f"{folder}/evaluation", "--json", "--", *config.evaluate]
        return TrialRun(
            folder,
            self.source.command(words, processes=processes),
            config.metric,
            slot=slot,
            after=after if config.evaluate else (),
        )

    def score(self, run: TrialRun) -> float | None:
        """The trial's value; None for one that is not finite. Raises UserError where there is no such figure."""
        metric = self.config.metric
        figures = run.facts() if self.config.evaluate else dict.fromkeys(run.figures)
        if metric not in figures:
            raise UserError(f"there is no figure '{metric}'; there are: {', '.join(sorted(figures)) or 'none'}")
        values = [figures[metric]] if self.config.evaluate else run.values()
        best = min if self.direction == "min" else max
        return last_or_best(values, best=best if self.kept_best else None)


def is_note(line: str) -> bool:
    """Whether a line of a dry run is a hint to the user."""
    return line.startswith("note ")


def callbacks(tree: Any) -> list[Any]:
    return list(tree.trainer.callbacks.values())
