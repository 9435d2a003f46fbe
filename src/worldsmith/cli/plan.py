"""`worldsmith plan`: what a run would need, before it has a GPU.

Exit codes: 0 planned, 1 nothing that --fit tried fits, 2 the run could not be planned, or a mistake of the user.
"""

from __future__ import annotations

import argparse

from worldsmith.actions.action import Result, mistakes_of_the_user
from worldsmith.actions.plan_run import USUAL, PlanRun, unset_variables
from worldsmith.cli import run_source
from worldsmith.cli.action import show
from worldsmith.cli.check import count_from
from worldsmith.config.errors import UserError
from worldsmith.config.tree.draft import Loaded
from worldsmith.monitor.terminal_text import print_warning

HELP = (
    "Say what a run would need of its GPUs and machines: memory by phase and what makes it, whether that fits, disk, "
    "operations, bytes on each link, seconds of a step and of the run. Found by carrying out a step of the run's own "
    "code without memory, in a minute, on any machine; without its data and weights where they are not there."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    run_source.add_arguments(parser)
    parser.add_argument(
        "--gpus", type=count_from(1), metavar="N", help="GPUs of the run (default: the fewest that its degrees allow)"
    )
    parser.add_argument(
        "--gpu",
        default=USUAL,
        metavar="WORD",
        help=f"which ones: such as h200, or memory such as 24GB (default: {USUAL})",
    )
    parser.add_argument("--quick", action="store_true", help="only parameters and what they take, in a second")
    parser.add_argument(
        "--encoded",
        action="store_true",
        help="all clips and captions are in the latent cache before the run, by `worldsmith encode`: no encoder is on "
        "its GPUs",
    )
    parser.add_argument(
        "--fit",
        action="store_true",
        help="look for settings with which it fits, or is faster, and print the three best as override words: "
        "recomputation, packs, degrees, encoding first, formats, adapters, smaller clips; takes a minute",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="with --fit: write the best as a run, .yaml or .json")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.epilog = "Every value of the run is a flag too, and words after -- are overrides, as for `worldsmith train`."


read_words = run_source.read_words


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError or UserError for what the user can mend."""
    if args.output and not args.fit:
        raise UserError("-o names the file for the best setting, which --fit looks for")
    if args.quick and args.fit:
        raise UserError("--fit carries out steps and --quick none: leave one out")
    if args.encoded and (args.fit or args.quick):
        raise UserError(
            f"--encoded has no effect with {'--fit, which tries both' if args.fit else '--quick'}: leave it out"
        )
    with mistakes_of_the_user():
        if args.fit:
            from worldsmith.cli.fit_run import run_fit

            return run_fit(args)
        loaded = load(args)
        about = {"run": loaded.tree, "open_variables": unset_variables(loaded.raw)}
        given = {"gpus": args.gpus, "gpu": args.gpu, "quick": args.quick, "encoded": args.encoded}
        action: PlanRun = PlanRun.Config(**given, **about).build()
        if args.json:
            return show(Result(facts=action.facts()), as_json=True)
        return show(action.run())


def load(args: argparse.Namespace) -> Loaded:
    """The run, where $NAME stands for each environment variable that is not set. Its warnings are printed."""
    loaded, _ = run_source.load_run(args, keep_unset="names")
    for warning in loaded.warnings:
        if "WORLD_SIZE" not in warning:  # --gpus says how many processes there are
            print_warning(warning)
    return loaded
