"""`worldsmith launch --slurm`: submits the launch as a SLURM job, defined by one script."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence

from worldsmith.config.errors import UserError
from worldsmith.config.write.values import shorten
from worldsmith.distributed.stop_signals import PREEMPTED

SAVE_BEFORE = 120
"""Seconds before its time limit at which a job receives the signal to save."""
MAX_MACHINES, MAX_PER_MACHINE = 10_000, 4_096
"""Max machines of a job, and max GPUs or cores of one machine: larger numbers are typos."""
TIME = re.compile(r"[0-9]+(?::[0-9]+){0,2}|[0-9]+-[0-9]+(?::[0-9]+){0,2}|UNLIMITED|INFINITE")
OPTION = re.compile(r"(?P<name>--[a-z][a-z0-9-]*)(?:=(?P<value>.+))?")
SET_BY_SCRIPT = ("node_rank", "master_addr", "master_port", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "standalone")
SCRIPT = """\
#!/bin/bash
{directives}

# Before the time is up (see --signal) this shell gets SIGUSR1: the run saves, ends with {preempted}, and the job
# is queued again. After SIGTERM (scancel, or a preemption that queues the job again by itself) it saves and ends.
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export WORLDSMITH_RUN_NAME=slurm_$SLURM_JOB_ID  # of a run without a name, also when it is queued again
if [ -n "${{SLURM_CPUS_PER_TASK:-}}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi

asked=none heard=no
hand_on() {{ asked=$1 heard=yes; kill -s "$1" "$step"; }}

# One launcher on each node.
srun --ntasks-per-node=1 bash -c 'exec worldsmith launch --node-rank "$SLURM_NODEID" \\
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"' launch \\
    {words} &
step=$!
trap 'hand_on USR1' USR1
trap 'hand_on TERM' TERM
while
    heard=no
    wait "$step"
    code=$?
    [ "$heard" = yes ]  # a signal ends the wait, and not the step
do :; done
if [ "$code" = {preempted} ] && [ "$asked" = USR1 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``--slurm`` to torchrun's parser."""
    group = parser.add_argument_group("SLURM")
    group.add_argument("--slurm", action="store_true")
    group.add_argument("--print", action="store_true", dest="print_script")
    for option in ("--time", "--partition", "--account", "--qos", "--gpus-per-node", "--cpus-per-task", "--job-name"):
        group.add_argument(option)
    group.add_argument("--sbatch", action="append", default=[])


def submit(args: argparse.Namespace, parser: argparse.ArgumentParser, head: Sequence[str], words: Sequence[str]) -> int:
    """Prints the script of a SLURM job, or submits it with `sbatch`; returns the exit code.

    Args:
        args: Parsed options of `worldsmith launch`.
        parser: Parser of `args`, for the defaults.
        head: Unparsed options of `worldsmith launch`, without the command.
        words: Command that each machine launches, with its arguments.

    Raises:
        UserError: If an option cannot work in a job, or `sbatch` does not exist.
    """
    text = script(args, parser, head, words)
    if args.print_script:
        print(text, end="")
        return 0
    if shutil.which("sbatch") is None:
        raise UserError(
            "worldsmith launch --slurm: `sbatch` is not on this machine; start the command where jobs are "
            "submitted, or write the script to a file with --print"
        )
    return 1 if subprocess.run(["sbatch"], input=text, text=True, check=False).returncode else 0


def script(args: argparse.Namespace, parser: argparse.ArgumentParser, head: Sequence[str], words: Sequence[str]) -> str:
    """Returns the text of the SLURM job script.

    Args:
        args: Parsed options of `worldsmith launch`.
        parser: Parser of `args`, for the defaults.
        head: Unparsed options of `worldsmith launch`, without the command.
        words: Command that each machine launches, with its arguments.

    Raises:
        UserError: If an option is set that the script itself sets, or that cannot work in a job.
    """
    for name in SET_BY_SCRIPT:
        if getattr(args, name) != parser.get_default(name):
            raise UserError(f"worldsmith launch --slurm: the script sets --{name.replace('_', '-')}; omit it")
    nodes, _, max_nodes = args.nnodes.partition(":")
    if max_nodes not in ("", nodes):
        raise UserError(f"worldsmith launch --slurm: --nnodes must be one number, found {shorten(args.nnodes)}")
    machines = parse_integer("nnodes", nodes, MAX_MACHINES, minimum=1)
    gpus = args.nproc_per_node if args.gpus_per_node is None else args.gpus_per_node
    if args.gpus_per_node is None and not gpus.isdigit():
        raise UserError(f"worldsmith launch --slurm: --nproc-per-node {shorten(gpus)} also needs --gpus-per-node N")
    count = parse_integer("nproc-per-node" if args.gpus_per_node is None else "gpus-per-node", gpus, MAX_PER_MACHINE)
    if args.time is not None and not TIME.fullmatch(args.time):
        raise invalid_value("time", "minutes, hours:minutes:seconds or days-hours", args.time)
    if args.cpus_per_task is not None:
        parse_integer("cpus-per-task", args.cpus_per_task, MAX_PER_MACHINE, minimum=1)
    names = {"partition": args.partition, "account": args.account, "qos": args.qos}
    for name, value in {"job-name": args.job_name, **names}.items():
        if value is not None and (not value or not value.isprintable() or "/" in value):
            raise invalid_value(name, "a name of printable characters without '/'", value)
    given = {
        "job-name": args.job_name or "worldsmith",
        "nodes": str(machines),
        "ntasks-per-node": "1",
        "gpus-per-node": str(count) if count else None,
        "cpus-per-task": args.cpus_per_task,
        "time": args.time,
        **names,
        "signal": f"B:USR1@{SAVE_BEFORE}",
        "output": "slurm-%x-%j.out",
    }
    lines = [f"#SBATCH --{name}={shlex.quote(value)}" for name, value in given.items() if value is not None]
    lines += ["#SBATCH --open-mode=append", "#SBATCH --requeue", *map(sbatch_line, args.sbatch)]
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(own)
    rest = own.parse_known_args(head)[1]
    return SCRIPT.format(directives="\n".join(lines), preempted=PREEMPTED, words=shlex.join([*rest, *words]))


def sbatch_line(option: str) -> str:
    """Returns the #SBATCH line of an additional option.

    Args:
        option: Option of sbatch, as `--name` or `--name=value`; any other form raises UserError.
    """
    found = OPTION.fullmatch(option)
    if found is None or not option.isprintable():
        raise invalid_value("sbatch", "--name or --name=value of printable characters", option)
    value = "" if found["value"] is None else f"={shlex.quote(found['value'])}"
    return f"#SBATCH {found['name']}{value}"


def parse_integer(name: str, text: str, maximum: int, *, minimum: int = 0) -> int:
    """Parses the value of an option as an integer.

    Args:
        name: Name of the option without dashes, for the message.
        text: Value of the option.
        maximum: Max allowed value.
        minimum: Min allowed value.

    Raises:
        UserError: If the value is not an integer in this range.
    """
    number = int(text) if re.fullmatch("[0-9]{1,9}", text) else -1
    if not minimum <= number <= maximum:
        raise invalid_value(name, f"an integer from {minimum} to {maximum}", text)
    return number


def invalid_value(name: str, expected: str, value: str) -> UserError:
    """Returns the error for an invalid value of an option of ``--slurm``."""
    return UserError(f"worldsmith launch --slurm: --{name}: expected {expected}, found {shorten(repr(value))}")
