"""`RunAction`: an action on a run config, which is given on the command line as for `worldsmith train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

from worldsmith.actions.action import Action
from worldsmith.config.tree.draft import Loaded
from worldsmith.config.tree.references import Kept
from worldsmith.distributed.world import launched_as
from worldsmith.monitor.terminal_text import print_warning


class RunWords(Protocol):
    """Command-line arguments that describe a run. The methods raise ConfigError or UserError for invalid arguments."""

    def load(self, more: Sequence[str] = (), *, keep_unset: Kept = False) -> Loaded:
        """Loads the config of the run.

        Args:
            more: Additional overrides, applied last.
            keep_unset: How environment variables that are not set are treated, see `Kept`; False: they are errors.
        """

    def unknown_source(self) -> str | None:
        """Returns the positional source argument if it is not a recipe, config file or run folder; else None."""

    def load_for_dataset(self, recipe: str, dataset: Any) -> Loaded:
        """Loads a recipe with `dataset` as its training data and without validation.

        If the recipe's dataset has the same class, only its path is replaced.
        """

    def leave_parent_out(self) -> list[str]:
        """Removes the parent model that a training spec names, so that its weights are not read.

        Returns:
            Notes about what was removed.
        """

    def repeat(self) -> list[str]:
        """Returns the arguments for another command about the same run; more overrides can be appended."""


class RunAction(Action):
    """An action on a run config. Its own fields are flags in addition to those of the run.

    The first paragraph of the class docstring is the command's description; the rest follows the list of flags.
    """

    metavars: ClassVar[Mapping[str, str]] = {}
    """Placeholders of values in the help, by field; numbers are N."""

    def __init__(self, config: Action.Config, *, run: Loaded | RunWords) -> None:
        super().__init__(config)
        self.given = run

    @cached_property
    def loaded(self) -> Loaded:
        """The loaded config of the run. Raises ConfigError or UserError."""
        return self.given if isinstance(self.given, Loaded) else self.load(self.given)

    def load(self, words: RunWords) -> Loaded:
        return words.load()

    @property
    def tree(self) -> Any:
        return self.loaded.tree

    def print_warnings(self) -> None:
        """Prints the warnings about the config, in the first process of a launch only."""
        for warning in self.loaded.warnings if launched_as()[0] == 0 else ():
            print_warning(warning)


def load_without_variables(words: RunWords) -> Loaded:
    """Loads a run that does not start on this machine.

    Environment variables that are not set keep the text $NAME. Warnings about WORLD_SIZE are omitted, because --gpus
    gives the number of processes. Raises ConfigError or UserError.
    """
    loaded = words.load(keep_unset="names")
    return replace(loaded, warnings=[warning for warning in loaded.warnings if "WORLD_SIZE" not in warning])
