"""`worldsmith config check --files`: what a run needs on disk, all that is missing in one report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worldsmith.actions.action import Action, Result
from worldsmith.config import Configurable
from worldsmith.config.errors import ConfigError, Place, locate
from worldsmith.config.tree.paths import Path
from worldsmith.training.file_checks import check_files


class CheckFiles(Action):
    """Looks for the weights, VAE, tokenizer and data that a run reads, and for the folder that it writes."""

    class Config(Action.Config):
        run: Configurable.Config
        """The run, with its references resolved."""

    config: Config

    def __init__(self, config: Config, *, written: Mapping[Path, Place], variables: Mapping[Path, str]) -> None:
        """`written`: where the values of the run stand; `variables`: the environment variables that gave some."""
        super().__init__(config)
        self.written, self.variables = written, variables

    def run(self) -> Result:
        """Raises ConfigError that lists all that is missing."""
        tree: Any = self.config.run
        if problems := check_files(tree, variables=self.variables):
            raise ConfigError(locate(problems, self.written))
        return Result()
