"""Launches with ``--nnodes MIN:MAX``: a run that loses a machine continues with the others, with the same batch."""

from __future__ import annotations

import math
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from worldsmith.cli.commands import read_command
from worldsmith.config.errors import UserError, WrongValueError
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.degrees import plan_degrees

if TYPE_CHECKING:
    from worldsmith.training.run_config import RunConfig

OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Variable that gives each set of processes a new store. torchrun's shared store would end with its machine, and the
other launchers would keep its address."""


def prepare_elastic(args: Namespace, words: list[str], machines: range, processes: int) -> None:
    """Checks a launch with ``--nnodes MIN:MAX``, and selects the rendezvous backend in `args`, in place.

    Args:
        args: Parsed arguments of `worldsmith launch`.
        words: Arguments of the launched command.
        machines: Possible numbers of machines.
        processes: Number of processes per machine.

    Raises:
        UserError: With all mistakes.
        ConfigError: If the config of the run is invalid.
    """
    if args.command != "train":
        raise UserError(f"worldsmith launch: --nnodes MIN:MAX is for train; {args.command} needs one number")
    command, train_args = read_command("train", words)
    config = resolve(command.check(train_args).tree)
    problems = [*option_problems(args), *batch_problems(config, machines, processes, train_args.resume_changed)]
    if problems:
        lines = (f"\n  {problem}" for problem in problems)
        raise UserError(f"worldsmith launch: --nnodes {args.nnodes} cannot be used:{''.join(lines)}")
    if args.rdzv_backend == "static":
        args.rdzv_backend = "c10d"


def option_problems(args: Namespace) -> Iterator[str]:
    """Yields the mistakes in the options of a launch with ``--nnodes MIN:MAX``."""
    if args.max_restarts < 1:
        yield "--max-restarts is 0, so a lost machine would end the run; set the number of losses to survive"
    if not args.rdzv_endpoint:
        yield "--rdzv-endpoint HOST:PORT is missing: an address of one machine, the same for all launchers"
    if args.node_rank:
        yield "--node-rank has no effect, since machines come and go; omit it"
    if args.standalone:
        yield "--standalone is for one machine; omit it"


def batch_problems(config: RunConfig, machines: range, processes: int, resume_changed: bool) -> Iterator[str]:
    """Yields the reasons why a run cannot keep its name and its packs per step with every number of machines.

    Args:
        config: Config of the run, resolved.
        machines: Possible numbers of machines.
        processes: Number of processes per machine.
        resume_changed: Whether the packs per step may differ from those of the checkpoint.
    """
    from worldsmith.checkpoint.run.find_checkpoint import read_pointer
    from worldsmith.training.run_folder import run_path
    from worldsmith.training.run_state import saved_batch

    if not config.job.name and not config.job.resume_newest:
        yield "job.name is empty, so that machines cannot find the run again; set -- job.name=NAME"
    shards, maximum = {}, machines[-1]
    for number in machines:
        try:
            shards[number] = plan_degrees(config.model.config.parallelism, number * processes).data
        except WrongValueError as error:
            yield f"{count(number)}: {error}"
    if maximum not in shards:
        return
    each, most = config.trainer.grad_accum_iter, shards[maximum]
    packs = each * most
    uneven = [f"{shard} ({count(number)})" for number, shard in shards.items() if packs % shard]
    if uneven:
        step = math.lcm(*(shard // math.gcd(shard, most) for shard in shards.values()))
        yield (
            f"trainer.grad_accum_iter = {each}: the {packs} packs of a step with {count(maximum)} ({each} for each of "
            f"{most} data-parallel processes) cannot be divided evenly among {', '.join(uneven)}; set a multiple of "
            f"{step}, or another range of machines"
        )
    newest = read_pointer(run_path(config.job) / "checkpoints")
    if newest.checkpoint is None or newest.problem or resume_changed:
        return
    before = math.prod(saved_batch(newest.checkpoint, each))
    if before not in (0, packs):
        yield (
            f"trainer.grad_accum_iter = {each}: a step has {packs} packs with {count(maximum)}, but {before} in "
            f"{newest.checkpoint}; change one of the two numbers, or add --resume-changed before `--`"
        )


def count(machines: int) -> str:
    return f"{machines} machine{'s' * (machines > 1)}"


@contextmanager
def shared_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Context manager: sets environment variables, which launched processes inherit, and removes them at the end."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
