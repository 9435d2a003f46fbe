"""`worldsmith encode`: fills the latent cache of a run before the run.

Exit codes: 0 done, 1 a process was killed, 2 a mistake of the user.
"""

from __future__ import annotations

import argparse
import logging

from worldsmith.actions.action import mistakes_of_the_user
from worldsmith.cli import run_source
from worldsmith.cli.action import show
from worldsmith.cli.check import count_from
from worldsmith.cli.train import is_first
from worldsmith.monitor.terminal_text import print_message, terminal_handler

HELP = (
    "Encode the clips of a run ahead of it, into dataloader_train.latent_cache: the run then only reads latents. The "
    "same command goes on where it was ended; `worldsmith launch … encode …` shares the work among its processes."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    run_source.add_arguments(parser)
    parser.add_argument(
        "--processes", type=count_from(1), default=1, metavar="N", help="processes here that share the work"
    )
    parser.add_argument(
        "--passes", type=count_from(1), default=1, metavar="N", help="passes, where each draws other frames or windows"
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.epilog = "Every value of the run is a flag too, and words after -- are overrides, as for `worldsmith train`."


read_words = run_source.read_words


def check(args: argparse.Namespace) -> None:
    """Reads the config as `run` does. Raises ConfigError or UserError for what the user can mend."""
    from worldsmith.actions.datasets.encode import Encode

    with mistakes_of_the_user():
        Encode.Config(run=run_source.load_run(args)[0].tree).build().check()


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError or UserError for what the user can mend."""
    loaded, _ = run_source.load_run(args)
    logging.basicConfig(level=logging.WARNING if is_first() else logging.ERROR, handlers=[terminal_handler()])
    for warning in loaded.warnings if is_first() else ():
        logging.getLogger("worldsmith").warning("warning: %s", warning)
    from worldsmith.actions.datasets.encode import Encode
    from worldsmith.actions.datasets.shares import ShareError

    action = Encode.Config(run=loaded.tree, processes=args.processes, passes=args.passes).build()
    try:
        with mistakes_of_the_user():
            return show(action.run(), as_json=args.json)
    except ShareError as error:
        print_message(f"worldsmith: error: {error}")
        return 1
