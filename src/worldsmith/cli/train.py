"""`worldsmith train`: runs, resumes or plans a training run.

Exit codes: 0 done, 1 failed, 2 a mistake of the user, 75 stopped on request and saved (the same command resumes).
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.actions.action import user_errors
from worldsmith.cli import run_source
from worldsmith.cli.action_command import is_first, print_result
from worldsmith.cli.run_command import GivenWords
from worldsmith.cli.run_source import COMMAND_VARIABLE, integer_from, start_command
from worldsmith.cli.spec_and_parent import LOAD_PATH, PARENT_HELP, adopt_parent_run
from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.plain import to_dict, to_yaml
from worldsmith.config.tree.references import resolve
from worldsmith.config.write.annotate import describe_origins
from worldsmith.data.stream.errors import DataError
from worldsmith.distributed.coordination_group import lost_partner
from worldsmith.distributed.launcher_messages import was_printed
from worldsmith.distributed.process_signals import follow_launcher
from worldsmith.distributed.stop_signals import PREEMPTED
from worldsmith.distributed.world import world_size
from worldsmith.monitor.terminal_text import command_lines, print_message, print_text, terminal_handler, terminal_width
from worldsmith.training.run_folder import Launch, run_path
from worldsmith.training.start_checks import completion

if TYPE_CHECKING:
    from worldsmith.training.trainer import Trainer

HELP = "Fine-tune a model from a recipe file or a recipe's name. The same command again resumes the run."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `worldsmith train` to a parser."""
    run_source.add_source_arguments(parser)
    parser.add_argument("--dryrun", action="store_true", help="check everything before the first step, print the plan")
    parser.add_argument(
        "--show-tree", action="store_true", help="with --dryrun: print the resolved config after the plan"
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="simulate every rank's first step, a save, a resume and the exports, without a GPU; report what "
        "would fail",
    )
    parser.add_argument(
        "--gpus", type=integer_from(1), metavar="N", help="with --rehearse or --dryrun: number of ranks of the run"
    )
    parser.add_argument(
        "--gpu", metavar="WORD", help="with --dryrun: also plan its memory and time, as `worldsmith plan` does"
    )
    parser.add_argument(
        "--resume-changed", action="store_true", help="resume a run folder although the config or the data has changed"
    )
    parser.add_argument("--parent", metavar="NAME", help=PARENT_HELP)
    parser.epilog = (
        "Every value of the run is also a flag, such as --optimizer.lr 1e-4; `worldsmith train FILE_OR_RECIPE "
        "--help [SECTION or WORD]` lists them. Arguments after -- are overrides and come last."
    )


read_words = run_source.read_words


def check(args: argparse.Namespace) -> Loaded:
    """Loads the config that parsed arguments describe, as `run` does, without training, and returns it.

    Raises ConfigError or UserError for what the user can fix.
    """
    adopt_parent_run(args)
    return run_source.load_run(args)[0]


def run(args: argparse.Namespace) -> int:
    """Trains, or only plans or rehearses the training that parsed arguments describe; returns the exit code.

    Raises ConfigError or UserError for what the user can fix.
    """
    refuse_ignored(args)
    given_spec_words, parent = args.spec_words, args.parent
    adopt_parent_run(args)
    if args.rehearse:
        return rehearse(args)
    loaded, words = run_source.load_run(args)
    is_main = is_first()
    logging.basicConfig(level=logging.INFO if is_main else logging.WARNING, handlers=[terminal_handler()])
    for warning in loaded.warnings if is_main else ():
        if args.gpus and "WORLD_SIZE" in warning:
            continue  # --gpus sets the number of processes
        logging.getLogger("worldsmith").warning("warning: %s", warning)
    if args.spec and args.policy is None and is_main:
        run_words = words[len(args.spec_words) :]
        if args.spec_words != given_spec_words:  # the weights are those of a parent
            run_words = [word for word in run_words if word.partition("=")[0] != LOAD_PATH]
        command = run_source.search_command(args.spec, [*(given_spec_words or ()), *run_words], parent)
        logging.getLogger("worldsmith").info("note: this command trains once; `%s` searches for settings", command)
    if args.dryrun:
        settings = {"resume_changed": args.resume_changed, "gpus": args.gpus, "gpu": args.gpu}
        return dryrun(loaded, show_tree=args.show_tree, **settings)
    follow_launcher()
    origins = describe_origins(loaded) if is_main else None
    launch = Launch(config_path=loaded.source, overrides=words, origins=origins, variables=loaded.variables)
    return train(loaded.tree, launch, resume_changed=args.resume_changed)


def refuse_ignored(args: argparse.Namespace) -> None:
    """Raises UserError if parsed arguments combine options of `train` such that one of them would have no effect."""
    if args.rehearse and args.dryrun:
        raise UserError(
            "--dryrun and --rehearse cannot be combined: --dryrun checks this machine with the run's data and "
            "weights, --rehearse simulates all ranks without them. Run one after the other"
        )
    if args.rehearse and args.resume_changed:
        raise UserError("--rehearse reads no run folder, so --resume-changed has no effect; omit it")
    if args.show_tree and not args.dryrun:
        raise UserError("--show-tree requires --dryrun; `worldsmith config show` prints the config without a plan")
    if args.gpu and not args.dryrun:
        raise UserError("--gpu requires --dryrun or `worldsmith plan`")
    if args.gpus and not (args.rehearse or args.dryrun):
        raise UserError(
            "--gpus requires --rehearse or --dryrun; `worldsmith launch --nproc-per-node N` starts N processes"
        )
    if args.gpus and "WORLD_SIZE" in os.environ and args.gpus != world_size():
        raise UserError(
            f"--gpus {args.gpus}, but the run has {world_size()} processes, set by `worldsmith launch` or "
            "WORLD_SIZE; omit one of them"
        )


def dryrun(loaded: Loaded, *, show_tree: bool, **settings: Any) -> int:
    """Prints the plan of a training run; returns the exit code.

    Args:
        loaded: Config of the run.
        show_tree: Whether to print the resolved config after the plan.
        **settings: Settings of `DryRun`, such as `gpus`.
    """
    from worldsmith.actions.dry_run import DryRun

    with user_errors():
        code = print_result(DryRun.Config(**settings).build(run=loaded).run())
    print(f"---\n{to_yaml(loaded.tree)}" if show_tree else "", end="")
    return code


def rehearse(args: argparse.Namespace) -> int:
    """Simulates the run that parsed arguments describe on fake ranks, prints the result and returns the exit code."""
    from worldsmith.tools.rehearse.rehearse import Rehearse

    with user_errors():
        return print_result(Rehearse.Config(gpus=args.gpus).build(run=GivenWords(args)).run())


def train(tree: Trainer.Config, launch: Launch, *, resume_changed: bool) -> int:
    """Trains from the start or from the last checkpoint; returns the exit code.

    For a completed run it only prints that the run is complete.

    Args:
        tree: Resolved config of the run.
        launch: Start command and environment of the run, for its record.
        resume_changed: Whether to resume although the config or the data has changed.
    """
    from worldsmith.checkpoint.run.save_error import SaveError
    from worldsmith.distributed.world import stop_world
    from worldsmith.training.callbacks.base import Outcome

    trainer: Trainer | None = None
    is_named = bool(tree.job.name) or tree.job.resume_newest
    try:
        with user_errors():
            complete = completion(run_path(tree.job), resolve(tree))
            if complete is not None:
                if is_first():
                    print_text("\n".join([complete, *next_step_lines(run_path(tree.job))]))
                return 0
            trainer = tree.build(resume_changed=resume_changed, launch=launch)  # the class that the recipe names
        try:
            outcome = trainer.train()
        except BrokenPipeError:
            raise
        except OSError as error:  # before training it is a mistake of the user, as in every command
            logging.getLogger("worldsmith").exception("error: a file could not be read or written")
            print_explanation(error, tree, trainer)
            return 1
        trainer.world.barrier()  # torchrun ends all ranks when one leaves with another code than 0
    except (DataError, FloatingPointError, SaveError) as error:
        if not was_printed(str(error)):
            logging.getLogger("worldsmith").error("error: %s", error)
        print_explanation(error, tree, trainer)
        return 1
    except (ConfigError, UserError, OSError):
        raise
    except Exception as error:
        lost = lost_partner(error) if isinstance(error, RuntimeError) else None
        if lost is None:
            print_message(traceback.format_exc().rstrip("\n"))
            print_explanation(error, tree, trainer)
        elif not was_printed(lost):
            advice = "so this one also ends; the same command resumes from the last checkpoint"
            logging.getLogger("worldsmith").error("error: %s, %s", lost, advice)
        return 1
    except KeyboardInterrupt:  # a second Ctrl-C: no step may wait now for ranks, or for a save that is given up
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(130)
    finally:
        stop_world()
    if outcome is Outcome.STOPPED:
        if trainer.world.is_main and (trainer.world.size == 1 or COMMAND_VARIABLE in os.environ):
            print(f"next: resume the run\n{resume_command('' if is_named else trainer.run_folder.name)}", flush=True)
        return PREEMPTED
    if trainer.world.is_main:
        print_text(f"done: {trainer.iteration} steps; run folder: {trainer.run_folder}")
        print_text("\n".join(next_step_lines(trainer.run_folder)))
    return 0


def next_step_lines(folder: Path) -> list[str]:
    """Returns lines with shell commands that use the finished run in `folder`, after the line "next:".

    Commands for which the user must choose other data than that of the run are omitted. The result is empty if the run
    folder cannot be read.
    """
    from worldsmith.monitor.page.next_steps import OTHER_CLIPS, OTHER_DATA, using_it
    from worldsmith.monitor.page.run_files import read_run

    with suppress(UserError, OSError):  # best effort: the run has succeeded
        commands = [advice.command for advice in using_it(read_run(folder), here=True)]
        complete = [text for text in commands if not {OTHER_CLIPS, OTHER_DATA}.intersection(shlex.split(text))]
        if terminal_width(sys.stdout) is None:
            return ["next:", *(f"  {text}" for text in complete)]
        return ["next:", *(line for text in complete for line in command_lines(shlex.split(text)))]
    return []


def resume_command(name: str) -> str:
    """Returns the shell command that resumes the run: that of this process or, if launched, of its launcher.

    Args:
        name: Name of a run that was started without a name; it is added, so that the command does not start a new run.
            Empty: the command already selects the run.
    """
    words = shlex.split(os.environ.get(COMMAND_VARIABLE, "")) or start_command()
    if name:
        end = words.index("--") if "--" in words else len(words)
        words[end:end] = ["--job.name", name]
    return shlex.join(words)


def print_explanation(error: Exception, tree: Trainer.Config, trainer: Trainer | None) -> None:
    """Prints an explanation and a fix if an error is a known one, from one process per machine.

    Args:
        error: Error that ended the training.
        tree: Config of the run, used if the trainer could not be built.
        trainer: Trainer of the run; None if it could not be built.
    """
    with suppress(Exception):  # best effort: a failure here must not hide the error
        from worldsmith.tools.explain.explanation import explain_message
        from worldsmith.tools.explain.facts import Run

        config, folder = (tree, None) if trainer is None else (trainer.config, trainer.run_folder)
        text = "".join(traceback.format_exception(error))
        lines = explain_message(text, Run(to_dict(config), folder, world_size()))
        if lines and not was_printed("\n".join(lines)):
            print_message("\n".join(lines))
