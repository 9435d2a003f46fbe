"""`worldsmith launch --slurm`: the same launch as a SLURM job, described by one script."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
from collections.abc import Sequence

from worldsmith.config.errors import UserError
from worldsmith.distributed.stop_signals import PREEMPTED

SAVE_BEFORE = 120
"""Seconds before the end of its time at which a job is asked to save."""
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
    """SLURM's options, beside torchrun's."""
    group = parser.add_argument_group("SLURM")
    group.add_argument("--slurm", action="store_true")
    group.add_argument("--print", action="store_true", dest="print_script")
    for option in ("--time", "--partition", "--account", "--qos", "--gpus-per-node", "--cpus-per-task", "--job-name"):
        group.add_argument(option)
    group.add_argument("--sbatch", action="append", default=[])


def submit(args: argparse.Namespace, parser: argparse.ArgumentParser, head: Sequence[str], words: Sequence[str]) -> int:
    """Prints the script of a job, or hands it to `sbatch`. `args` are those of the options `head`, `words` what each
    machine launches. Raises UserError for what cannot work."""
    text = script(args, parser, head, words)
    if args.print_script:
        print(text, end="")
        return 0
    if shutil.which("sbatch") is None:
        raise UserError(
            "worldsmith launch --slurm: there is no `sbatch` on this machine; start it where jobs are submitted, or "
            "write the script to a file with --print"
        )
    return 1 if subprocess.run(["sbatch"], input=text, text=True, check=False).returncode else 0


def script(args: argparse.Namespace, parser: argparse.ArgumentParser, head: Sequence[str], words: Sequence[str]) -> str:
    for name in SET_BY_SCRIPT:
        if getattr(args, name) != parser.get_default(name):
            raise UserError(f"worldsmith launch --slurm: the script sets --{name.replace('_', '-')}; leave it out")
    least, _, most = args.nnodes.partition(":")
    if not least.isdigit() or most not in ("", least):
        raise UserError(f"worldsmith launch --slurm: --nnodes must be one number, found {args.nnodes}")
    gpus = args.gpus_per_node or args.nproc_per_node
    if not gpus.isdigit():
        raise UserError(f"worldsmith launch --slurm: --nproc-per-node {gpus} needs --gpus-per-node N beside it")
    given = {
        "job-name": args.job_name or "worldsmith",
        "nodes": least,
        "ntasks-per-node": "1",
        "gpus-per-node": gpus if int(gpus) else None,
        "cpus-per-task": args.cpus_per_task,
        "time": args.time,
        "partition": args.partition,
        "account": args.account,
        "qos": args.qos,
        "signal": f"B:USR1@{SAVE_BEFORE}",
        "output": "slurm-%x-%j.out",
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in given.items() if value is not None]
    lines += ["#SBATCH --open-mode=append", "#SBATCH --requeue", *(f"#SBATCH {option}" for option in args.sbatch)]
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(own)
    rest = own.parse_known_args(head)[1]
    return SCRIPT.format(directives="\n".join(lines), preempted=PREEMPTED, words=shlex.join([*rest, *words]))
