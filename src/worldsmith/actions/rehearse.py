"""`--rehearse`: what every rank of a run would do first, without a GPU and without the other ranks."""

from __future__ import annotations

from typing import Any

from worldsmith.actions.action import Action, Result
from worldsmith.config import Configurable
from worldsmith.config.declare.ranges import Count
from worldsmith.config.tree.references import resolve


class Rehearse(Action):
    """Simulates the first step of every rank, a save, a resume and the exports; says what would go wrong."""

    class Config(Action.Config):
        run: Configurable.Config
        """The run."""
        gpus: Count | None = None
        """Ranks. None: as many as the degrees of the run ask for."""

    config: Config

    def run(self) -> Result:
        from worldsmith.planning.rehearsal.rehearse import rehearse, usual_ranks

        tree: Any = resolve(self.config.run)
        found = rehearse(tree, self.config.gpus or usual_ranks(tree))
        return Result(found.lines(), code=2 if found.findings else 0)
