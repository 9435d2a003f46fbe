"""`worldsmith plan --fit`: settings with which a run fits, as words and as a file."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from copy import copy
from pathlib import Path

from worldsmith.actions.action import Result
from worldsmith.actions.plan_run import least_ranks
from worldsmith.cli import run_source
from worldsmith.cli.action import show
from worldsmith.cli.config.convert import write_new
from worldsmith.cli.plan import load
from worldsmith.config.errors import UserError
from worldsmith.config.tree.draft import Loaded
from worldsmith.config.write.convert import convert
from worldsmith.distributed.gpus import find_gpu
from worldsmith.monitor.terminal_text import WIDTH, terminal_width
from worldsmith.planning.fitting.fit import Clock, Fitting
from worldsmith.planning.fitting.fit_text import fit_facts, fit_lines

BUDGET = 55.0
"""Seconds of processor time that a search may take: with starting the command about a minute."""
EVERY = 5.0
"""Seconds between two lines of progress through a pipe."""
INTERRUPTED = 130
FORMS = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}


def run_fit(args: argparse.Namespace) -> int:
    """Prints what was found and writes the best. Raises UserError before the search for a file that cannot be made."""
    gpu, output = find_gpu(args.gpu), args.output and Path(args.output)
    if output and output.suffix not in FORMS:
        raise UserError(f"{output}: the best setting is written as {', '.join(FORMS)}; name such a file")
    if output and output.exists():
        raise UserError(f"{output} is there already; name another file")
    ranks = args.gpus or least_ranks(load(args).tree)

    def read(words: Sequence[str]) -> Loaded:
        return run_source.load_run(with_words(args, words), keep_unset="names")[0]

    clock = Clock(BUDGET)
    said = Progress(clock)
    fits = Fitting(read, ranks=ranks, gpu=gpu, told=said, clock=clock).find()
    said.end()
    written = output if output and fits.best and fits.best[0].whole else None
    if written:
        best = read(fits.best[0].setting.words)
        write_new(str(written), convert(best, FORMS[written.suffix]).text, False)
    start = ["worldsmith", *launch_words(ranks, gpu.per_machine), "train"]
    lines = [*fit_lines(fits, gpu, start, run_words(args))]
    if written:
        commands = [["worldsmith", "encode"]] * fits.best[0].setting.encoded + [start]
        lines += ["", "; ".join([f"written: {written}", *(shlex.join([*words, str(written)]) for words in commands)])]
    elif output:
        lines += ["", f"{output} is not written: nothing that was carried out with all layers fits"]
    code = INTERRUPTED if fits.stopped == "interrupted" else 0 if fits.best else 1
    return show(Result(() if args.json else lines, fit_facts(fits), code), as_json=args.json)


def with_words(args: argparse.Namespace, words: Sequence[str]) -> argparse.Namespace:
    """The same run, changed by further words."""
    changed = copy(args)
    changed.overrides = [*args.overrides, *words]
    return changed


def launch_words(ranks: int, per_machine: int) -> list[str]:
    """What starts so many processes. R and HOST are each machine's number and the address of the first."""
    machines = next(n for n in range(-(-ranks // per_machine), ranks + 1) if ranks % n == 0)
    several = ["--nnodes", str(machines), "--node-rank", "R", "--master-addr", "HOST"] if machines > 1 else []
    return ["launch", *several, "--nproc-per-node", str(ranks // machines)] if ranks > 1 else []


def run_words(args: argparse.Namespace) -> list[str]:
    """What names the run on a command line, up to further words."""
    _, words, _ = run_source.draft_run(args)
    if args.base:
        return ["--base", *args.base, "--", *words]
    if args.module:
        return ["--module", args.module, "--config", args.config, "--", *words]
    if args.spec:
        said = args.spec_words or []
        return ["--spec", args.spec, *said, "--", *words[len(said) :]]
    return [args.source or args.sft_toml, "--", *words]


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
