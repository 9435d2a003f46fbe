"""`worldsmith launch`: starts a command in several processes with torchrun, and returns one exit code for all.

torchrun itself treats every exit code except 0 as a failure, ignores SIGUSR1, and kills processes that are still
running 30 s after a signal. This module passes signals to the processes, which agree on a step, save and exit.
"""

from __future__ import annotations

import itertools
import logging
import os
import shlex
import signal
import sys
import threading
import time
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import psutil

from worldsmith.actions.registry import commands
from worldsmith.cli.commands import CommandParser, read_command, split_tail
from worldsmith.cli.elastic import OWN_STORE, prepare_elastic, shared_variables
from worldsmith.cli.run_source import COMMAND_VARIABLE, start_command
from worldsmith.cli.slurm import MAX_MACHINES, add_options, submit
from worldsmith.config.errors import UserError
from worldsmith.config.write.values import shorten
from worldsmith.distributed.launcher_messages import MAX_WORLD_SIZE, LauncherServer
from worldsmith.distributed.process_signals import STOP_SIGNALS, acting_at_once
from worldsmith.distributed.stop_signals import PREEMPTED, leave, leave_terminal
from worldsmith.distributed.world import require_devices
from worldsmith.monitor.terminal_text import print_message, print_text
from worldsmith.training.run_folder import START_VARIABLE, start_time

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

LAUNCHED = ("train", "encode", "generate", "evaluate")
"""Commands that can split their work over several processes."""
HELP = f"""usage: worldsmith launch [OPTION]… COMMAND …

Starts `worldsmith COMMAND …` in several processes, which share the work: {", ".join(LAUNCHED)}. The options are
torchrun's; these are the usual ones:

  --nproc-per-node N   processes on this machine, or `gpu`: one per GPU (default: 1)
  --nnodes N           machines (default: 1); run the same command on each, with its own node rank
  --nnodes MIN:MAX     train on the machines that are there: if one is lost or joins, all resume from
                       the last checkpoint with the same packs per step (trainer.grad_accum_iter is
                       that of MAX machines); needs --max-restarts and --rdzv-endpoint HOST:PORT
  --node-rank R        number of this machine, from 0
  --master-addr HOST   address of machine 0, the same on all machines
  --master-port PORT   port on machine 0 (default: 29500; on one machine any free port)
  --max-restarts N     number of restarts from the last checkpoint after failures (default: 0)

`torchrun --help` lists the others. With --dryrun or --rehearse a single process checks or simulates all ranks.

--slurm submits a SLURM job on --nnodes machines with --nproc-per-node processes each, which saves before its time
limit and queues itself again:

  --print              show the script instead of submitting it with sbatch
  --time, --partition, --account, --qos, --gpus-per-node (default: --nproc-per-node; 0: none), --cpus-per-task,
  --job-name           as for sbatch
  --sbatch=OPTION      any other option of sbatch, such as --sbatch=--mem=0 (may be repeated)

SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR1 are forwarded to the processes, which save and stop, however long that
takes; processes of commands other than train end at once, and the same command resumes them.
SIGQUIT (Ctrl-\\) ends them at once.

exit codes: 0 done, 75 asked to stop and saved (the same command resumes), 2 a mistake of the user, 130 interrupted by
a second Ctrl-C, 1 failed."""
OWN_SETTINGS = ("module", "no_python", "run_path", "signals_to_handle")
"""Options of torchrun that `worldsmith launch` sets itself: the program to start, and the signals to handle."""
FIRST_REPORT_AFTER = 5.0
"""Seconds until the first message about waiting for other machines; the intervals after that grow to a minute."""
GIVE_UP = 60.0
"""Seconds to wait for launchers of other machines to report that their processes have ended. torchrun would wait for
300 s, and has no setting for it."""


def launch(words: Sequence[str], packages: Sequence[str] = ()) -> int:
    """Runs `worldsmith launch` with its arguments until all processes have ended.

    Args:
        words: Options of torchrun, then the command and its arguments.
        packages: ``--import`` and ``--trust`` arguments for each process.

    Returns:
        Exit code of the run, as far as the processes of this machine know it.

    Raises:
        UserError: For invalid options, and if the processes cannot connect to each other.
    """
    if not words or words[0] in ("-h", "--help"):
        print_text(HELP)
        return 0 if words else 2
    forwarded: set[int] = set()
    desk = LauncherServer()

    def forward_signal(number: int) -> None:
        forwarded.add(number)
        if number == signal.SIGHUP:
            leave_terminal()
        processes = psutil.Process().children()
        if not processes and desk.exit_code is not None:
            os._exit(desk.exit_code)  # only launchers on other machines are waited for
        if not processes:
            leave(number)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    with acting_at_once(forward_signal):
        from torch.distributed import DistNetworkError
        from torch.distributed.elastic.multiprocessing import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.rendezvous import RendezvousError
        from torch.distributed.run import run

        args, parser = read_launch_words(words)
        name, command_words = args.command, args.training_script_args
        check, plan = (action_steps if name in commands() and not commands()[name].about_run else run_steps)(
            name, command_words
        )
        args.training_script_args = [name, *packages, *command_words]
        if getattr(args, "slurm", False):
            return submit_job(args, parser, words, plan, check, packages)
        minimum, machines, processes = count_processes(args)
        most = machines * processes
        if minimum < machines:
            prepare_elastic(args, command_words, range(minimum, machines + 1), processes)
        if plan is not None:
            os.environ["WORLD_SIZE"] = str(most)
            return plan()
        if minimum == machines:
            check()  # a mistake is reported once, before there are processes to repeat it
        set_rendezvous(args, machines)
        logging.getLogger("torch.distributed.elastic.agent.server.api").addFilter(drop_traceback)
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").addFilter(is_failure_record)
        shared = shared_variables({MAX_WORLD_SIZE: str(most), OWN_STORE: "1"} if minimum < machines else {})
        with desk, block_stop_signals(), share_run_name(), shared, report_waiting(args, minimum, machines, desk):
            try:
                require_devices(processes)
                run(args)
            except ChildFailedError as error:
                return failure_code(error, forwarded)
            except SignalException as error:
                print(
                    f"stopped at once by {error.sigval.name}; progress since the last checkpoint is lost",
                    file=sys.stderr,
                )
                return 1
            except DistNetworkError as error:
                raise UserError(f"worldsmith launch: {describe_rendezvous_failure(args, error)}") from error
            except RendezvousError as error:
                how = f"failed ({type(error).__name__}): its machine was lost, or there are too few machines"
                report(f"the rendezvous at {rendezvous_endpoint(args)} {how}; the same command resumes")
                return 1
            except ValueError as error:
                raise UserError(f"worldsmith launch: {error}") from error
        if desk.exit_code is None:
            print("worldsmith launch: the processes ended without reporting an error", file=sys.stderr)
        return 1 if desk.exit_code is None else desk.exit_code


Steps = tuple[Callable[[], object], Callable[[], int] | None]
"""Functions of a command: one checks its arguments, the other prints its plan (None if no plan is requested)."""


def run_steps(name: str, words: list[str]) -> Steps:
    """Returns two functions for a command about a run: its check, and its plan.

    Args:
        name: Name of the command.
        words: Arguments of the command.

    Returns:
        A function that raises an error for invalid arguments, and a function that prints the plan and returns the exit
        code; the latter is None unless `--dryrun` or `--rehearse` requests it.
    """
    command, args = read_command(name, words)
    plan_only = getattr(args, "dryrun", False) or getattr(args, "rehearse", False)
    return partial(command.check, args), partial(command.run, args) if plan_only else None


def action_steps(name: str, words: list[str]) -> Steps:
    """Returns two functions for an action, as `run_steps` does: its check, and its plan or help.

    Args:
        name: Name of the command.
        words: Arguments of the command.
    """
    from worldsmith.cli import action_command

    head, tail = split_tail(words)
    plan_only = {action_command.DRYRUN, action_command.HELP, "-h"} & set(head)
    check = partial(action_command.check_action, name, head, tail)
    return check, partial(action_command.run_action, name, head, tail, start=launch) if plan_only else None


def submit_job(
    args: Namespace,
    parser: ArgumentParser,
    words: Sequence[str],
    plan: object,
    check: Callable[[], object],
    packages: Sequence[str],
) -> int:
    """Submits the launch as a SLURM job after its command is checked; returns the exit code.

    Args:
        args: Parsed arguments of `worldsmith launch`.
        parser: Parser of `args`, for the defaults.
        words: Unparsed arguments of `worldsmith launch`.
        plan: None; any other value raises UserError, because a job cannot run a plan or print help.
        check: Raises an error if the arguments of the launched command are invalid.
        packages: ``--import`` and ``--trust`` arguments for each process.
    """
    if plan is not None:
        raise UserError("worldsmith launch: --slurm cannot be combined with --dryrun, --rehearse or --help")
    check()
    count = len(args.training_script_args) - len(packages)  # the command and its arguments
    return submit(args, parser, words[: len(words) - count], [*packages, *words[len(words) - count :]])


@contextmanager
def block_stop_signals() -> Iterator[None]:
    """Context manager: blocks SIGTERM, SIGINT, SIGHUP and SIGUSR1 in this thread and in processes that it starts.

    Each started process unblocks the signals after it has installed its handlers. Another thread of this process
    continues to handle the signals.
    """
    former = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def share_run_name() -> AbstractContextManager[None]:
    """Context manager: sets environment variables that the launched processes inherit.

    They are a run name, which stays the same when the processes are restarted, so that they resume the run, and the
    command of the launcher. A run name that is set already is kept. The variables that were set are removed at the end.
    """
    variables = {COMMAND_VARIABLE: shlex.join(start_command())}
    if not os.environ.get(START_VARIABLE):
        variables[START_VARIABLE] = f"{start_time()}_{uuid.uuid4().hex[:4]}"
    return shared_variables(variables)


@contextmanager
def report_waiting(args: Namespace, minimum: int, machines: int, desk: LauncherServer) -> Iterator[None]:
    """Context manager: logs at intervals that this machine waits for other machines, until processes start on this one.

    If launchers of other machines send no report after the processes here have ended, it logs this; after 60 s
    (`GIVE_UP`) it exits this process with the exit code that is known so far. With ``--nnodes MIN:MAX`` processes that
    were stopped start again when machines come or go, so only exit code 0 is final.

    Args:
        args: Parsed arguments of `worldsmith launch`, for the address in messages.
        minimum: Min number of machines.
        machines: Max number of machines; with 1, no message is logged.
        desk: Server that receives the exit code of the processes on this machine.
    """
    started_at, over = time.monotonic(), threading.Event()
    others = f"{machines - 1} other {'machine' if machines == 2 else 'machines'}"
    elastic = minimum < machines
    if elastic:
        others = f"other machines ({minimum} to {machines} in all)"

    def watch() -> None:
        pause, started, ended = FIRST_REPORT_AFTER, False, 0.0
        while not over.wait(pause):
            now = time.monotonic()
            code = None if elastic and desk.exit_code else desk.exit_code
            if psutil.Process().children():
                started, pause, ended = True, FIRST_REPORT_AFTER, 0.0
            elif code is not None and not ended:
                ended = now
                report(
                    f"all processes on this machine have ended; waiting for a report from {others}, at most "
                    f"{GIVE_UP:.0f} s"
                )
            elif code is not None and now - ended > GIVE_UP:
                report(f"no report from {others}; perhaps the launcher there was killed")
                os._exit(code)
            elif elastic or not started:
                pause = min(2 * pause, 60)
                report(
                    f"waiting for {others} to connect at {rendezvous_endpoint(args)} ({now - started_at:.0f} s); "
                    "stop with Ctrl-C"
                )

    if machines > 1:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def report(message: str) -> None:
    """Prints a message with the prefix "worldsmith launch: "."""
    print_message(f"worldsmith launch: {message}")


def drop_traceback(record: logging.LogRecord) -> bool:
    """Log filter: removes the traceback from torchrun's rendezvous warnings, which then take one line; returns True."""
    record.exc_info = None
    return True


def is_failure_record(record: logging.LogRecord) -> bool:
    """Log filter: returns False for torchrun's records about processes that stopped on request, which did not fail."""
    return not (isinstance(record.args, tuple) and record.args[:1] == (PREEMPTED,))


def set_rendezvous(args: Namespace, machines: int) -> None:
    """Completes the torchrun arguments `args`, in place.

    A launch on one machine gets a random rendezvous id, unless it has one. torchrun writes no log files, unless the
    arguments name a log folder or redirect output.
    """
    if machines == 1 and args.rdzv_id == "none":
        args.rdzv_id = str(uuid.uuid4())
    if args.log_dir is None and args.redirects == args.tee == "0":
        args.log_dir = os.devnull


def rendezvous_endpoint(args: Namespace) -> str:
    """Returns the rendezvous endpoint of the launch as "host:port"."""
    return args.rdzv_endpoint or f"{args.master_addr}:{args.master_port}"


def read_launch_words(words: Sequence[str]) -> tuple[Namespace, ArgumentParser]:
    """Parses the arguments of `launch` with torchrun's parser (with ``--slurm`` also SLURM's options).

    Returns:
        The parsed arguments, and the parser. `training_script_args` are the arguments after the command.

    Raises:
        UserError: If an option or command is not supported.
    """
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    parser.__class__ = CommandParser  # torchrun's options, with messages of this package
    parser.prog, parser.usage = "worldsmith launch", "worldsmith launch [OPTION]… COMMAND … (see --help)"
    options = itertools.takewhile(lambda word: word not in LAUNCHED, words)
    if "--slurm" in options:
        add_options(parser)
    args = parser.parse_args(words)
    for name in OWN_SETTINGS:
        if getattr(args, name) != parser.get_default(name):
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"worldsmith launch: {option} is set by the command itself; omit it")
    if args.training_script not in LAUNCHED:
        known = " or ".join(f"`{name}`" for name in LAUNCHED)
        raise UserError(f"worldsmith launch starts {known}, not '{args.training_script}'; see worldsmith launch --help")
    args.command = args.training_script
    args.module, args.training_script = True, "worldsmith.cli.launched_process"
    args.signals_to_handle = "SIGQUIT"
    return args, parser


def describe_rendezvous_failure(args: Namespace, error: Exception) -> str:
    """Returns the message for a failed rendezvous: the reason and how to fix it."""
    if "EADDRINUSE" in str(error):
        return (
            f"port {args.master_port} is in use on this machine, perhaps by another run; set a different "
            "--master-port for each run (MASTER_PORT for the launch scripts), the same on all machines"
        )
    return (
        f"the processes cannot connect at {rendezvous_endpoint(args)}, the --master-addr and --master-port of machine "
        f"0: {error}"
    )


def count_processes(args: Namespace) -> tuple[int, int, int]:
    """Returns the min and the max number of machines, and the number of processes on this machine.

    Raises:
        UserError: If the arguments are invalid.
    """
    from torch.distributed.run import determine_local_world_size, parse_min_max_nnodes

    try:
        minimum, maximum = parse_min_max_nnodes(args.nnodes)
        if not 1 <= minimum <= maximum <= MAX_MACHINES:
            raise ValueError(f"expected 1 to {MAX_MACHINES} machines")
        return minimum, maximum, determine_local_world_size(args.nproc_per_node)
    except (ValueError, RuntimeError) as error:
        words = f"--nnodes {shorten(args.nnodes)} --nproc-per-node {shorten(args.nproc_per_node)}"
        raise UserError(f"worldsmith launch: {words}: {error}") from error


def failure_code(error: ChildFailedError, forwarded: set[int]) -> int:
    """Returns the exit code of a launch in which at least one process did not exit with 0.

    The first failure counts, because torchrun ended the other processes with SIGTERM. Exit code 2 (a mistake of the
    user) has priority over all codes. Code 1 and SIGTERM have the lowest priority: other ranks end with them after one
    has failed.

    Args:
        error: Error of torchrun with the failed processes.
        forwarded: Numbers of the signals that this launcher has forwarded; a process that one of them ended counts as
            stopped on request.
    """
    failures = error.failures
    if 2 in {failure.exitcode for failure in failures.values()}:
        return 2
    last = {1: 1, -signal.SIGTERM: 2}
    rank = min(failures, key=lambda rank: (last.get(failures[rank].exitcode, 0), failures[rank].timestamp))
    first = failures[rank]
    if first.exitcode in (PREEMPTED, 130):
        return first.exitcode
    if -first.exitcode in forwarded:  # before it could catch a signal, so that there was no progress to save
        return PREEMPTED
    from worldsmith.tools.explain.explanation import explain_message

    how = f"was ended by {first.signal_name()}" if first.exitcode < 0 else f"ended with exit code {first.exitcode}"
    message = f"worldsmith launch: rank {rank} {how}; it was the first to fail"
    print("\n".join([message, *explain_message(message, None)]), file=sys.stderr)
    return 1
