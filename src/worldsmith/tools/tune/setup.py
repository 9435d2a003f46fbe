"""Setup of a study: its folder, the run to tune, the search space, the strategy, and their checks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.plain import flatten, to_dict
from worldsmith.dialects.cosmos_rl.policy import Route, route
from worldsmith.dialects.cosmos_rl.train.sources import TEST_SIZE
from worldsmith.distributed.world import require_devices
from worldsmith.files.errors import require_libraries
from worldsmith.planning.plan import least_ranks
from worldsmith.tools.tune.final import FinalData
from worldsmith.tools.tune.source import Source
from worldsmith.tools.tune.space import Space, as_words
from worldsmith.tools.tune.strategy import Strategy
from worldsmith.tools.tune.trial_run import visible_devices
from worldsmith.training.run_folder import given_root

LOSSES = ("loss", "perplexity", "error")
"""Substrings of metric names: smaller values are better for a metric whose name contains one of them."""


@dataclass
class StudySetup:
    """Source, search space, strategy and other objects of a study, built on first access from the command's config.

    Invalid settings raise ConfigError or UserError.
    """

    config: Any
    """Config of the command `worldsmith tune` (`Tune.Config`)."""

    @cached_property
    def folder(self) -> Path:
        """Folder of the study: from `-o`, else "tune" in the result folder that a training spec names.

        Raises UserError if neither is given.
        """
        if self.config.out:
            return Path(self.config.out)
        folder = self.given.output_folder()
        if not folder:
            raise UserError("no folder for the study: use -o DIR, or results_dir in a spec")
        return (given_root() or Path()) / os.path.expanduser(folder) / "tune"

    @cached_property
    def route(self) -> Route:
        """Decision whether to search or only to train once.

        It is made from the override `automl_policy` and the request in natural language (`--request`). Raises UserError
        for an unknown value of `automl_policy`.
        """
        config = self.config
        schemas = Path(config.schemas) if config.schemas else None
        return route("train", config.words, request=config.request, folder=schemas)

    @cached_property
    def given(self) -> Source:
        """Run to tune: the recipe, file or run folder of the command line, with only the overrides given there."""
        return Source(self.config.source, self.route.words, self.config.parent_run)

    @cached_property
    def source(self) -> Source:
        """Run that each trial trains: `given` with overrides that load the initial weights and disable resuming.

        The initial weights are those of the parent run (`parent_run`), if there is one. If no search is requested, the
        result is `given` itself. Raises ConfigError or UserError.
        """
        return self.given.with_parent_found().as_new_run() if self.route.search else self.given

    @cached_property
    def base(self) -> Loaded:
        """Loaded config of the unchanged run (the baseline). Raises ConfigError."""
        return self.source.load()

    @cached_property
    def processes(self) -> int:
        """Number of processes that the parallelism degrees of the baseline require."""
        return least_ranks(self.base.tree)

    @cached_property
    def space(self) -> Space:
        """Search space: config fields with `Search` annotations, if `marked` is set, and the fields of `--search`."""
        config = self.config
        return Space(self.base.tree, config.search, keep=config.keep, marked=config.marked, spec=self.source.spec)

    @cached_property
    def direction(self) -> Literal["min", "max"]:
        """Whether lower ("min") or higher ("max") values of the metric are better.

        Raises:
            UserError: If --direction is not given, and the name of the metric is not that of a loss or an error.
        """
        if self.config.direction is not None:
            return self.config.direction
        if any(part in self.config.metric.rpartition("/")[2].lower() for part in LOSSES):
            return "min"
        raise UserError(
            f"--metric {self.config.metric}: unknown whether smaller or larger values are better. Add "
            "--direction min or max"
        )

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy that selects and prunes trials."""
        names = ("seed", "sampler", "startup", "pruner", "reduction", "least_validations")
        settings = {name: getattr(self.config, name) for name in names}
        return Strategy(self.direction, most=self.validations({}), **settings)

    def validations(self, settings: Mapping[str, Any]) -> int:
        """Returns how many times a run with these settings (values by config path) validates after its first step."""
        loop = (self.source.load(as_words(settings)) if settings else self.base).tree.trainer
        return int(-(-loop.max_iter // loop.validation_iter))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Settings that identify a study, as plain data; a study folder is only continued if they are equal.

        They are the settings of the search, its dimensions ("search"), and the config of the baseline by path ("run").
        """
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
        """Evaluation of the best trial and the baseline on the held-out data of `--final-data`."""
        config = self.config
        return FinalData(self.source, config.final_data, config.metric, config.evaluate)

    def refusal(self, settings: Mapping[str, Any]) -> str | None:
        """Returns the first mistake in the config of a run with these settings (by path); None if it is valid."""
        try:
            self.source.load(as_words(settings))
        except ConfigError as error:
            problem = error.problems[0]
            return f"{problem.path}: {problem.message}" if problem.path else problem.message
        return None

    def check(self) -> None:
        """Raises UserError or ConfigError if settings of the study contradict each other or the config of the run.

        Also raises UserError if Optuna is not installed, or if this machine has too few GPUs.
        """
        config, tree = self.config, self.base.tree
        require_libraries("worldsmith tune", "tune", "optuna")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        assert self.space.dimensions
        is_validation = config.metric.startswith(("val/", "val_ema/"))
        if is_validation and config.evaluate:
            raise UserError(
                f"--metric {config.metric} is a validation metric: with --evaluate, name a metric of "
                "`worldsmith evaluate`"
            )
        if not is_validation and not config.evaluate:
            raise UserError(
                f"--metric {config.metric}: validation metrics are named val/… or val_ema/…; a metric of "
                "`worldsmith evaluate` needs --evaluate with the data to measure on"
            )
        if is_validation and not (tree.trainer.run_validation and tree.dataloader_val is not None):
            remedy = "trainer.run_validation=true and dataloader_val"
            if self.source.is_spec:
                remedy = f"validation.enable=true, and {TEST_SIZE}=N to hold out N training records"
            raise UserError(f"--metric {config.metric}: the run does not validate; add {remedy}")
        if is_validation and config.metric.startswith("val_ema/") and not tree.model.config.ema.enabled:
            raise UserError(f"--metric {config.metric}: the run keeps no EMA weights (model.config.ema.enabled)")
        if config.pruner != "none" and not is_validation:
            raise UserError(f"--pruner {config.pruner} needs a validation metric as --metric")
        if config.pruner != "none" and tree.trainer.validation_iter >= tree.trainer.max_iter:
            raise UserError(
                f"--pruner {config.pruner}: a trial validates only at its end; lower trainer.validation_iter "
                f"({tree.trainer.validation_iter}) below trainer.max_iter ({tree.trainer.max_iter})"
            )
        callbacks = tree.trainer.callbacks.values()
        if "metrics" not in {type(callback).__qualname__.partition(".")[0].lower() for callback in callbacks}:
            raise UserError("the run writes no metrics: add the callback `metrics` to trainer.callbacks")
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
