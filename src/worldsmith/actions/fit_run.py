"""`worldsmith plan --fit`: settings with which a run fits, as words and as a file."""

from __future__ import annotations

import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.actions.action import Result
from worldsmith.config.errors import UserError
from worldsmith.config.tree.draft import Loaded
from worldsmith.config.write.convert import convert, write_new
from worldsmith.monitor.terminal_text import WIDTH, terminal_width
from worldsmith.planning.fitting.evaluate_settings import Clock, Fitting
from worldsmith.planning.fitting.fit_text import fit_facts, fit_lines

if TYPE_CHECKING:
    from worldsmith.actions.plan_run import PlanRun

BUDGET = 55.0
"""Seconds of processor time that a search may take: with starting the command about a minute."""
EVERY = 5.0
"""Seconds between two lines of progress through a pipe."""
INTERRUPTED = 130
FORMS = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}


def find_fits(plan: PlanRun) -> Result:
    """Searches, and writes the best setting. Raises UserError before the search for a file that cannot be written."""
    config, words = plan.config, plan.given
    if isinstance(words, Loaded):
        raise UserError("a search loads the run again with other settings: expected the words that describe it")
    gpu, output = plan.gpu, Path(config.output) if config.output else None
    if output and output.suffix not in FORMS:
        raise UserError(f"{output}: the best setting is written as {', '.join(FORMS)}; name such a file")
    if output and output.exists():
        raise UserError(f"{output} is there already; name another file")
    plan.print_warnings()
    ranks, read = plan.ranks, partial(words.load, keep_unset="names")
    clock = Clock(BUDGET)
    said = Progress(clock)
    fits = Fitting(read, ranks=ranks, gpu=gpu, told=said, clock=clock).find()
    said.end()
    written = output if output and fits.best and fits.best[0].whole else None
    if written:
        best = read(fits.best[0].setting.words)
        write_new(str(written), convert(best, FORMS[written.suffix]).text, False)
    start = ["worldsmith", *launch_words(ranks, gpu.per_machine), "train"]
    lines = [*fit_lines(fits, gpu, start, words.repeat())]
    if written:
        commands = [["worldsmith", "encode"]] * fits.best[0].setting.encoded + [start]
        lines += ["", "; ".join([f"written: {written}", *(shlex.join([*words, str(written)]) for words in commands)])]
    elif output:
        lines += ["", f"{output} is not written: nothing that was carried out with all layers fits"]
    return Result(lines, fit_facts(fits), INTERRUPTED if fits.stopped == "interrupted" else 0 if fits.best else 1)


def launch_words(ranks: int, per_machine: int) -> list[str]:
    """What starts so many processes. R and HOST are each machine's number and the address of the first."""
    machines = next(n for n in range(-(-ranks // per_machine), ranks + 1) if ranks % n == 0)
    several = ["--nnodes", str(machines), "--node-rank", "R", "--master-addr", "HOST"] if machines > 1 else []
    return ["launch", *several, "--nproc-per-node", str(ranks // machines)] if ranks > 1 else []


class Progress:
    """Says on stderr what is being tried: on a line of the terminal that the next one replaces; through a pipe a line
    every few seconds."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.said_at = clock, -EVERY

    def __call__(self, text: str) -> None:
        line = f"trying, {self.clock.spent:.0f} of {self.clock.budget:.0f} s of processor time: {text}"
        if sys.stderr.isatty():
            width = terminal_width(sys.stderr) or WIDTH
            print(f"\r\033[K{line[: width - 1]}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self.said_at >= EVERY:
            self.said_at = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clears the line of a terminal."""
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
