"""`worldsmith plan`: what a run needs, before it has a GPU."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from worldsmith.actions.action import Action, Result
from worldsmith.config import Configurable
from worldsmith.config.declare.configurable import walk
from worldsmith.config.declare.ranges import Count
from worldsmith.distributed.gpus import Gpu, find_gpu
from worldsmith.monitor.terminal_text import print_message
from worldsmith.planning.quick import QuickPlan, quick_plan
from worldsmith.training.parallel import plan_degrees

if TYPE_CHECKING:
    from worldsmith.config.tree.degrees import Degrees
    from worldsmith.planning.plan import Plan

USUAL = "h100-80"
"""The GPU that is meant where none is named."""


class PlanRun(Action):
    """Says what a run would need: memory of GPUs and machines, disk, time. Reads its config and data, no weights."""

    class Config(Action.Config):
        run: Configurable.Config
        """The run, with its references resolved."""
        gpus: Count | None = None
        """How many GPUs it has; null: the fewest that its parallel degrees allow."""
        gpu: str = USUAL
        """Which ones: a name such as h100-80, or memory such as 24GB."""
        quick: bool = False
        """Only what is known at once: parameters and what they take."""
        encoded: bool = False
        """Everything is in the latent cache before the run, by `worldsmith encode`: no encoder is on its GPUs."""
        open_variables: list[str] = field(default_factory=list)
        """Environment variables that the run needs and that are not set."""

    config: Config

    def run(self) -> Result:
        """The lines come as they are known. Raises ValueError or UserError for what cannot be planned."""
        return Result(self.lines())

    def facts(self) -> dict[str, Any]:
        """The same for programs; of a quick plan the keys that are known."""
        if not self.config.quick:
            return self.exact.to_json()
        known = {"run": self.name, "family": self.tree.model.name, "gpus": self.ranks, "degrees": asdict(self.degrees)}
        return {**known, "gpu": asdict(self.gpu), "quick": self.quick.to_json()}

    def lines(self) -> Iterator[str]:
        from worldsmith.planning.text import plan_lines, quick_lines

        yield from quick_lines(self.name, self.quick, self.gpu, self.ranks, self.degrees)
        if self.config.quick:
            return
        if sys.stderr.isatty():
            print_message("a step is carried out without memory; this can take a minute …")
        yield from plan_lines(self.exact)

    @property
    def tree(self) -> Any:
        return self.config.run

    @property
    def name(self) -> str:
        return self.tree.job.name or self.tree.model.name

    @property
    def degrees(self) -> Degrees:
        return plan_degrees(self.tree.model.config, self.ranks)

    @cached_property
    def ranks(self) -> int:
        return self.config.gpus or least_ranks(self.tree)

    @cached_property
    def gpu(self) -> Gpu:
        return find_gpu(self.config.gpu)

    @cached_property
    def quick(self) -> QuickPlan:
        return quick_plan(self.tree, self.ranks)

    @cached_property
    def exact(self) -> Plan:
        from worldsmith.planning.plan import make_plan

        config = self.config
        return make_plan(self.tree, self.ranks, self.gpu, encoded=config.encoded, open_variables=config.open_variables)


def least_ranks(run: Any) -> int:
    """The fewest ranks that the degrees of the run allow."""
    asked = run.model.config.parallelism
    shard, replicate = asked.data_parallel_shard_degree, asked.data_parallel_replicate_degree
    return int(max(shard, 1) * max(replicate, 1) * asked.context_parallel_shard_degree)


def unset_variables(tree: Any) -> list[str]:
    """Environment variables that are not set and that references without a default name, in the order of the config."""
    texts = [value for _, value in walk(tree) if isinstance(value, str)]
    names = [name.strip() for text in texts for name in re.findall(r"\$\{oc\.env:([^,{}]+)\}", text)]
    return [name for name in dict.fromkeys(names) if name not in os.environ]
