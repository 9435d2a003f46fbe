"""`worldsmith train`: runs, resumes or plans a training run.

Exit codes: 0 done, 1 failed, 2 a mistake of the user, 75 asked to stop and saved (the same command resumes).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING

from worldsmith.cli import run_source
from worldsmith.config.errors import UserError
from worldsmith.training.run_folder import Launch

if TYPE_CHECKING:
    from worldsmith.training.trainer import Trainer

HELP = "Fine-tune a model from a recipe file or a recipe's name. The same command again resumes the run."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    run_source.add_arguments(parser)
    parser.add_argument("--dryrun", action="store_true", help="check everything before the first step, print the plan")
    parser.add_argument(
        "--resume-changed", action="store_true", help="resume a run folder although the config or the data has changed"
    )
    parser.epilog = (
        "Every value of the run is a flag too, such as --optimizer.lr 1e-4; "
        "`worldsmith train FILE_OR_RECIPE --help [SECTION]` lists them. Words after -- are overrides and come last."
    )


read_words = run_source.read_words


def run(args: argparse.Namespace) -> int:
    """Trains. Raises ConfigError or UserError for what the user can mend."""
    loaded, words = run_source.load_run(args)
    is_main = os.environ.get("RANK", "0") == "0"
    logging.basicConfig(level=logging.INFO if is_main else logging.WARNING, format="%(message)s", stream=sys.stderr)
    for warning in loaded.warnings if is_main else ():
        logging.getLogger("worldsmith").warning("warning: %s", warning)
    if args.dryrun:
        return dryrun(loaded.tree)
    return train(loaded.tree, Launch(config_path=loaded.source, overrides=words), resume_changed=args.resume_changed)


def dryrun(tree: Trainer.Config) -> int:
    """Prints the resolved tree and the plan."""
    from worldsmith.config.tree import to_yaml
    from worldsmith.data.errors import DataError
    from worldsmith.training.dryrun import plan_run
    from worldsmith.training.run_folder import run_path

    print(to_yaml(tree), end="")
    print("---")
    try:
        for line in plan_run(tree, run_path(tree.job), world_size=int(os.environ.get("WORLD_SIZE", "1"))):
            print(line, flush=True)
    except (ValueError, DataError) as error:
        raise UserError(str(error)) from error
    return 0


def train(tree: Trainer.Config, launch: Launch, *, resume_changed: bool) -> int:
    """Runs or resumes; a run that has done all its steps says so at once."""
    from worldsmith.checkpoint.save_error import SaveError
    from worldsmith.data.errors import DataError
    from worldsmith.distributed.world import stop_world
    from worldsmith.training.run_folder import run_path
    from worldsmith.training.stop_signals import PREEMPTED
    from worldsmith.training.trainer import Outcome, Trainer, completed_steps

    folder = run_path(tree.job)
    done = completed_steps(tree, folder)
    if done is not None:
        print(f"the run in {folder} is complete: {done} of {tree.trainer.max_iter} steps are done")
        return 0
    try:
        try:
            trainer = Trainer(tree, resume_changed=resume_changed, launch=launch)
        except (ValueError, DataError) as error:
            raise UserError(str(error)) from error
        outcome = trainer.train()
    except (DataError, FloatingPointError, SaveError) as error:
        logging.getLogger("worldsmith").error("error: %s", error)
        return 1
    finally:
        stop_world()
    if outcome is Outcome.STOPPED:
        return PREEMPTED
    if trainer.world.is_main:
        print(f"done: {trainer.iteration} steps; the run is in {folder}")
    return 0
