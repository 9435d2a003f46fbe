"""`--rehearse` of `worldsmith train`: simulates every rank without a GPU, the data or the weights."""

from __future__ import annotations

import os
import sys

from worldsmith.actions.action import Result
from worldsmith.actions.run_action import RunAction, RunArguments, load_without_variables
from worldsmith.config.declare.ranges import Count
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.distributed.world import launched_as
from worldsmith.monitor.terminal_text import print_message


class Rehearse(RunAction):
    """Simulates the first step of every rank, a save, a resume and the exports of a run, and reports the problems.

    It needs no GPU, no data and no weights.
    """

    class Config(RunAction.Config):
        gpus: Count | None = None
        """Number of ranks; null: WORLD_SIZE, otherwise the number that the parallelism degrees of the run require."""

    config: Config

    def run(self) -> Result:
        from worldsmith.tools.rehearse.rehearsal import rehearse

        self.print_warnings()
        if sys.stderr.isatty():
            print_message("simulating all processes; this can take a minute …")
        found = rehearse(self.tree, self.ranks)
        return Result(found.lines(), code=2 if found.findings else 0)

    def load(self, words: RunArguments) -> Loaded:
        return load_without_variables(words)

    @property
    def ranks(self) -> int:
        """World size: from the flag, else WORLD_SIZE, else from the parallelism degrees."""
        from worldsmith.tools.rehearse.rehearsal import default_world_size

        launched = launched_as()[1] if "WORLD_SIZE" in os.environ else None
        return self.config.gpus or launched or default_world_size(self.tree)
