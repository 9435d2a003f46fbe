"""`RunAction`: an action about a run, which its command line describes as that of `worldsmith train` does."""

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
    """The words of a command line that describe a run. Its methods raise ConfigError or UserError."""

    def load(self, more: Sequence[str] = (), *, keep_unset: Kept = False) -> Loaded:
        """Loads the run; `more` are further override words."""

    def unknown_source(self) -> str | None:
        """Returns the word without a flag if it names neither a recipe nor a run."""

    def load_for_dataset(self, recipe: str, dataset: Any) -> Loaded:
        """Loads a recipe with the settings `dataset` in place of its training data, and without validation."""

    def leave_parent_out(self) -> list[str]:
        """Removes the parent that a training spec names; returns notes about it."""

    def repeat(self) -> list[str]:
        """Returns the words for another command about the same run; further override words may follow."""


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
        """The run. Raises ConfigError or UserError."""
        return self.given if isinstance(self.given, Loaded) else self.load(self.given)

    def load(self, words: RunWords) -> Loaded:
        return words.load()

    @property
    def tree(self) -> Any:
        return self.loaded.tree

    def print_warnings(self) -> None:
        """Prints the warnings about the config, in one process of a launch."""
        for warning in self.loaded.warnings if launched_as()[0] == 0 else ():
            print_warning(warning)


def load_without_variables(words: RunWords) -> Loaded:
    """Loads a run that is not started here: $NAME replaces environment variables that are not set.

    Warnings about WORLD_SIZE are omitted, because --gpus gives the number of processes.
    """
    loaded = words.load(keep_unset="names")
    return replace(loaded, warnings=[warning for warning in loaded.warnings if "WORLD_SIZE" not in warning])
