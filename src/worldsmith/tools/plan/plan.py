"""`worldsmith plan`: estimates what a run needs, without a GPU.

Exit codes: 0 planned, 1 no setting that --fit evaluated fits, 2 the run could not be planned, or a mistake of the user.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.actions.action import Result
from worldsmith.actions.run_action import RunAction, RunArguments, load_without_variables
from worldsmith.config.declare.configurable import walk
from worldsmith.config.declare.ranges import Count
from worldsmith.config.errors import UserError
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.write.convert_config import convert, write_new
from worldsmith.distributed.degrees import Degrees, plan_degrees
from worldsmith.distributed.gpus import Gpu, find_gpu
from worldsmith.monitor.terminal_text import WIDTH, print_message, terminal_width
from worldsmith.planning.plan import Plan, QuickPlan, least_ranks, make_plan, quick_plan
from worldsmith.planning.plan_text import plan_lines, quick_lines

if TYPE_CHECKING:
    from worldsmith.tools.plan.evaluate_settings import Clock

BUDGET = 55.0
"""Max CPU seconds of a search after the first setting that fits."""
BUDGET_TO_FIND_ONE = 300.0
"""Max CPU seconds of a search that has found no setting yet, which happens with large models."""
EVERY = 5.0
"""Seconds between two progress lines if the output is not a terminal."""
INTERRUPTED = 130
FORMS = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}


class PlanRun(RunAction):
    """Estimates what a run needs: GPU memory by phase, host RAM, disk, communication, and time per step.

    It simulates a step with the code of the run and fake tensors, in about a minute, on any machine. Weights and data
    need not be on this machine.
    """

    aliases: ClassVar[Mapping[str, str]] = {"-o": "output"}
    metavars: ClassVar[Mapping[str, str]] = {"gpu": "WORD", "output": "FILE"}

    class Config(RunAction.Config):
        gpus: Count | None = None
        """number of GPUs (default: the smallest number that the parallelism degrees allow)"""
        gpu: str = "h100-80"
        """GPU type such as h200, or a memory size such as 24GB (default: h100-80)"""
        quick: bool = False
        """only count parameters and their memory, in about a second"""
        encoded: bool = False
        """assume that `worldsmith encode` caches all latents before the run, so that no encoder is on the GPUs"""
        fit: bool = False
        """search for settings with which the run fits or is faster, and print up to three as overrides, the best first:
        gradient checkpointing, pack size, parallelism degrees, encoding before the training, offload, number formats,
        adapters, smaller clips; takes a minute, for large models up to five"""
        output: str | None = None
        """with --fit: write the best setting as a run config, .yaml or .json"""

    config: Config

    def run(self) -> Result:
        """Returns the plan, whose lines are computed while they are printed; with --fit, the result of the search.

        Raises UserError for flags without effect, and ValueError if the number of GPUs does not fit the parallelism
        degrees.
        """
        self.reject_ignored_flags()
        if self.config.fit:
            return self.find_fits()
        self.print_warnings()
        return Result(self.lines(), self.facts)

    def load(self, words: RunArguments) -> Loaded:
        return load_without_variables(words)

    def reject_ignored_flags(self) -> None:
        """Raises UserError for command-line flags that would have no effect."""
        config = self.config
        if config.output and not config.fit:
            raise UserError("-o is the file for the best setting of --fit: add --fit or omit -o")
        if config.quick and config.fit:
            raise UserError("--fit simulates steps and --quick does not: omit one of them")
        parallelism = self.tree.model.config.parallelism
        if config.fit and (parallelism.offload == "all" or parallelism.offload_fraction < 1):
            raise UserError(
                'a run with offload = "all" is not timed, and the memory of an offload_fraction below 1 cannot be '
                "estimated from a run with few layers: omit both with --fit"
            )
        if config.encoded and (config.fit or config.quick):
            raise UserError(
                f"--encoded has no effect with {'--fit, which tries both' if config.fit else '--quick'}: omit it"
            )

    def find_fits(self) -> Result:
        """Searches settings with which the run fits, and writes the best one as a config if -o is given.

        Raises UserError before the search if the file of -o exists or its name does not end in .yaml or .json.
        """
        from worldsmith.tools.plan.evaluate_settings import Clock, Fitting
        from worldsmith.tools.plan.fit import find_fits, fit_facts, fit_lines, row

        words, gpu, output = self.given, self.gpu, Path(self.config.output) if self.config.output else None
        if isinstance(words, Loaded):
            raise UserError(
                "--fit loads the run again with other settings: it requires the command-line arguments "
                "that describe the run"
            )
        if output and output.suffix not in FORMS:
            raise UserError(f"{output}: expected a file name that ends in {', '.join(FORMS)} for the best setting")
        if output and output.exists():
            raise UserError(f"{output} already exists: choose another file")
        self.print_warnings()
        read, clock = partial(words.load, keep_unset="names"), Clock(BUDGET, BUDGET_TO_FIND_ONE)
        progress = Progress(clock)
        fits = find_fits(Fitting(read, ranks=self.ranks, gpu=gpu, show_progress=progress, clock=clock))
        progress.end()
        start = ["worldsmith", *launch_arguments(self.ranks, gpu.per_machine), "train"]
        lines = [*fit_lines(fits, gpu, start, words.repeat(), steps=self.tree.trainer.max_iter)]
        if unset := unset_variables(self.loaded.raw):
            lines += row("not set", f"{', '.join(unset)}: export them before these commands")
        if output and fits.best and fits.best[0].whole:
            best = fits.best[0].setting
            write_new(str(output), convert(read(best.words), FORMS[output.suffix]).text, False)
            lines += ["", f"written: {output}; {shlex.join([*start, str(output)])}"]
        elif output:
            lines += ["", f"{output} is not written: no setting that was simulated with all layers fits"]
        return Result(lines, fit_facts(fits), INTERRUPTED if fits.stopped == "interrupted" else 0 if fits.best else 1)

    def facts(self) -> dict[str, Any]:
        """Returns the plan as JSON data; with --quick, only the values that need no simulation."""
        if not self.config.quick:
            return self.exact.to_json()
        known = {"run": self.name, "family": self.tree.model.name, "gpus": self.ranks, "degrees": asdict(self.degrees)}
        return {**known, "gpu": asdict(self.gpu), "quick": asdict(self.quick)}

    def lines(self) -> Iterator[str]:
        """Yields the output lines of the plan; simulates the step after the first lines."""
        yield from quick_lines(self.name, self.quick, self.gpu, self.ranks, self.degrees)
        if self.config.quick:
            return
        if sys.stderr.isatty():
            print_message("simulating a step without allocating memory; this can take a minute …")
        yield from plan_lines(self.exact)

    @property
    def name(self) -> str:
        return self.tree.job.name or self.tree.model.name

    @property
    def degrees(self) -> Degrees:
        return plan_degrees(self.tree.model.config.parallelism, self.ranks)

    @cached_property
    def ranks(self) -> int:
        return self.config.gpus or least_ranks(self.tree)

    @cached_property
    def gpu(self) -> Gpu:
        return find_gpu(self.config.gpu)

    @cached_property
    def quick(self) -> QuickPlan:
        """Plan without a simulated step: parameters and the memory of weights, gradients and optimizer state."""
        return quick_plan(self.tree, self.ranks)

    @cached_property
    def exact(self) -> Plan:
        """Full plan, computed from a simulated step."""
        unset = unset_variables(self.loaded.raw)
        return make_plan(self.tree, self.ranks, self.gpu, encoded=self.config.encoded, open_variables=unset)


def unset_variables(tree: Any) -> list[str]:
    """Returns the unset environment variables (names) that a config references without a default, in config order."""
    texts = [value for _, value in walk(tree) if isinstance(value, str)]
    names = [name.strip() for text in texts for name in re.findall(r"\$\{oc\.env:([^,{}]+)\}", text)]
    return [name for name in dict.fromkeys(names) if name not in os.environ]


def launch_arguments(ranks: int, per_machine: int) -> list[str]:
    """Returns `launch` and its arguments for `ranks` processes, at most `per_machine` per machine; [] for one process.

    R and HOST in the arguments are placeholders for node rank and master address.
    """
    machines = next(n for n in range(-(-ranks // per_machine), ranks + 1) if ranks % n == 0)
    several = ["--nnodes", str(machines), "--node-rank", "R", "--master-addr", "HOST"] if machines > 1 else []
    return ["launch", *several, "--nproc-per-node", str(ranks // machines)] if ranks > 1 else []


class Progress:
    """Shows progress on stderr: a status line in a terminal, or one line every few seconds in a pipe."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.shown_at = clock, -EVERY

    def __call__(self, text: str) -> None:
        text = re.sub(r"\b(model\.config|dataloader_train)\.", "", text)  # so that the differing part fits on the line
        line = f"{self.clock.spent:.0f} of {self.clock.limit:.0f} s of CPU time: {text}"
        if sys.stderr.isatty():
            width = terminal_width(sys.stderr) or WIDTH
            print(f"\r\033[K{line[: width - 1]}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self.shown_at >= EVERY:
            self.shown_at = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clears the status line of the terminal; does nothing in a pipe."""
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
