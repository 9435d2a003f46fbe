"""`RunAction`: an action on a run config, which is given on the command line as for `worldsmith train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

from worldsmith.actions.action import Action
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.references import Kept
from worldsmith.distributed.world import launched_as
from worldsmith.monitor.terminal_text import print_warning


class RunArguments(Protocol):
    """Command-line arguments that describe a run. The methods raise ConfigError or UserError for invalid arguments."""

    def load(self, more: Sequence[str] = (), *, keep_unset: Kept = False) -> Loaded:
        """Loads the config of the run.

        Args:
            more: Additional overrides, applied last.
            keep_unset: Treatment of references to unset environment variables. False: errors; True: they stay
                references; "names": replaced by $NAME in string fields, errors elsewhere.
        """

    def unknown_source(self) -> str | None:
        """Returns the first argument if it is not the name of a recipe, a config file or a run folder; else None."""

    def load_for_dataset(self, recipe: str, dataset: Any) -> Loaded:
        """Loads the config of `recipe` with `dataset`, a dataset config, as training data and without validation.

        If the recipe's dataset has the same class, only its path is replaced.
        """

    def leave_parent_out(self) -> list[str]:
        """Removes the parent, the run or export that supplies the initial weights, from the arguments, in place.

        Only arguments that name a training spec with the key `parent_job_id` are changed. The config of the run can
        then be loaded without the parent.

        Returns:
            Warnings that the parent is not checked; empty if the arguments were not changed.
        """

    def repeat(self) -> list[str]:
        """Returns the arguments with which another `worldsmith` command loads this run; overrides can be appended."""


class RunAction(Action):
    """Base class of commands on the config of a run. Its config fields are flags in addition to those of the run.

    The first paragraph of the class docstring is the command's description; the rest follows the list of flags.
    """

    metavars: ClassVar[Mapping[str, str]] = {}
    """Config field -> placeholder of its value in the help text; the default for numbers is N."""

    def __init__(self, config: Action.Config, *, run: Loaded | RunArguments) -> None:
        super().__init__(config)
        self.given = run

    @cached_property
    def loaded(self) -> Loaded:
        """Config of the run, loaded on first access. Raises ConfigError or UserError."""
        return self.given if isinstance(self.given, Loaded) else self.load(self.given)

    def load(self, words: RunArguments) -> Loaded:
        return words.load()

    @property
    def tree(self) -> Any:
        return self.loaded.tree

    def print_warnings(self) -> None:
        """Prints the warnings about the config to stderr; only rank 0 prints."""
        for warning in self.loaded.warnings if launched_as()[0] == 0 else ():
            print_warning(warning)


def load_without_variables(words: RunArguments) -> Loaded:
    """Loads the config of a run that is not started on this machine, such as one that is only planned.

    Environment variables that are not set keep the text $NAME. Warnings about WORLD_SIZE are omitted, because --gpus
    gives the number of processes. Raises ConfigError or UserError.
    """
    loaded = words.load(keep_unset="names")
    return replace(loaded, warnings=[warning for warning in loaded.warnings if "WORLD_SIZE" not in warning])
