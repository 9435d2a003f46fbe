"""Takes the place of `worldsmith train` for tests of the launcher: `worldsmith --import launched_train launch … train`.

`train CASE FOLDER` is a process that handles signals as a run does, and leaves files in the folder that tell what
happened.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import types
from pathlib import Path

from worldsmith.config.errors import UserError
from worldsmith.distributed.stop_signals import PREEMPTED, StopSignals
from worldsmith.distributed.world import start_world

RANK = int(os.environ.get("RANK", "0"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case")
    parser.add_argument("folder", type=Path)
    parser.set_defaults(overrides=[], dryrun=False)


def check(args: argparse.Namespace) -> None:
    if args.case == "misspelt":
        raise UserError("what is misspelt?")


def run(args: argparse.Namespace) -> int:
    args.folder.joinpath(f"words_{RANK}").write_text(" ".join(args.overrides))
    return int(globals()[args.case](args.folder))


def done(folder: Path) -> int:
    return 0


def train(folder: Path) -> int:
    """Trains until it is asked to stop, and takes a while to save."""
    with StopSignals() as stop:
        (folder / f"ready_{RANK}").write_text(str(os.getpid()))
        while stop.asked is None:
            time.sleep(0.02)
        time.sleep(0.3 + 0.3 * RANK)
        (folder / f"saved_{RANK}").write_text(stop.asked)
    return PREEMPTED


def train_long(folder: Path) -> int:
    """The same, with a save that takes for ever."""
    with StopSignals() as stop:
        (folder / f"ready_{RANK}").write_text(str(os.getpid()))
        while stop.asked is None:
            time.sleep(0.02)
        (folder / f"saving_{RANK}").touch()
        time.sleep(600)
    return PREEMPTED


def load(folder: Path) -> int:
    """Loads for ever."""
    (folder / f"ready_{RANK}").write_text(str(os.getpid()))
    time.sleep(600)
    return 1


def meet(folder: Path) -> int:
    """Rank 0 waits in the process group's library for rank 1, which never comes."""
    (folder / f"ready_{RANK}").write_text(str(os.getpid()))
    if RANK == 0:
        start_world()
    time.sleep(600)
    return 1


def fail_once(folder: Path) -> int:
    """Rank 1 fails in the first try, after all have met."""
    world = start_world()
    world.barrier()
    if RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        return 1
    (folder / f"tries_{RANK}").write_text(os.environ["TORCHELASTIC_RESTART_COUNT"])
    world.barrier()
    return 0


def mistake(folder: Path) -> int:
    """Wrong on rank 1; the other waits for it."""
    if RANK == 1:
        raise UserError("the folder is wrong")
    return load(folder)


def memory(folder: Path) -> int:
    """The kernel ends rank 1."""
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return load(folder)


module = types.ModuleType("worldsmith.cli.train")
module.__dict__.update(HELP="", add_arguments=add_arguments, check=check, run=run)
sys.modules["worldsmith.cli.train"] = module
