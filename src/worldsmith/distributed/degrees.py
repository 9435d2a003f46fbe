"""Parallel degrees: how the ranks are arranged, whether the number of ranks fits, and which degrees would fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from worldsmith.config.errors import WrongValueError
from worldsmith.config.sections import ParallelismConfig

NAMES = ("data_parallel_shard_degree", "data_parallel_replicate_degree", "context_parallel_shard_degree")
PARALLELISM = "model.config.parallelism"


@dataclass(frozen=True, slots=True)
class Degrees:
    """Parallelism degrees of a run, with replicate × shard × context ranks.

    Every `context` consecutive ranks process the same packed batches, so the data has replicate × shard shards. The
    weights are sharded over the shard × context ranks of a replica.
    """

    replicate: int
    shard: int
    context: int = 1

    @property
    def data(self) -> int:
        """Number of data shards: replicate × shard."""
        return self.replicate * self.shard

    @property
    def weights(self) -> int:
        """Number of weight shards: shard × context."""
        return self.shard * self.context

    def __str__(self) -> str:
        text = f"replicate {self.replicate} × shard {self.shard}"
        return f"{text} × context {self.context}" if self.context > 1 else text


def plan_degrees(parallelism: ParallelismConfig, processes: int) -> Degrees:
    """Returns the parallelism degrees of a run, with numbers instead of -1.

    Args:
        parallelism: Parallelism section of the config.
        processes: Number of ranks.

    Raises:
        WrongValueError: If the product of the degrees is not `processes`; the message lists possible degrees.
    """
    try:
        return fit_degrees(
            parallelism.data_parallel_shard_degree,
            parallelism.data_parallel_replicate_degree,
            processes,
            context=parallelism.context_parallel_shard_degree,
        )
    except WrongValueError as error:
        raise error.within(PARALLELISM) from None


def check_world_size(parallelism: ParallelismConfig) -> None:
    """Raises WrongValueError if the environment variable WORLD_SIZE is set and the degrees' product differs from it."""
    processes = launched_processes()
    if processes is None:
        return
    try:
        plan_degrees(parallelism, processes)
    except WrongValueError as error:
        error.message += " (WORLD_SIZE)"
        raise


def launch_warnings(parallelism: ParallelismConfig) -> Iterator[str]:
    """Yields a warning if the parallelism degrees require several processes, but WORLD_SIZE is not set."""
    degrees = [getattr(parallelism, name) for name in NAMES]  # a reference that is not resolved is a string
    if all(type(degree) is int for degree in degrees) and max(degrees) > 1 and launched_processes() is None:
        yield f"{PARALLELISM} needs {needed_processes(*degrees)}, but WORLD_SIZE is not set: use `worldsmith launch`"


def launched_processes() -> int | None:
    """Returns the number in the environment variable WORLD_SIZE; None if it is not set or not a positive integer."""
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0 else None


def fit_degrees(shard: int, replicate: int, world_size: int, *, context: int = 1) -> Degrees:
    """Returns the parallelism degrees, with numbers instead of -1, whose product is the number of ranks.

    Args:
        shard: Sharding degree, or -1 for the remaining ranks.
        replicate: Number of replicas, or -1 for the remaining ranks. If both are -1, all ranks shard one replica.
        world_size: Number of ranks.
        context: Context-parallel degree, at least 1.

    Raises:
        WrongValueError: If the product cannot be the number of ranks; the message lists possible degrees.
    """
    found = dict(zip(NAMES, (shard, replicate, context)))
    for name, degree in found.items():
        if degree < 1 and (degree != -1 or name == NAMES[2]):
            allowed = "at least 1" if name == NAMES[2] else "at least 1, or -1 for as many as possible"
            raise WrongValueError({name: degree}, allowed=allowed)
    processes = f"{world_size} process{'es' * (world_size > 1)}"
    if world_size % context:
        works = ", ".join(map(str, divisors(world_size)))
        raise WrongValueError(
            {NAMES[2]: context},
            why=f"the run has {processes}, which cannot be divided into context-parallel groups of {context}",
            remedy=f"for {world_size} these are possible: {works}",
        )
    groups = world_size // context
    solved = Degrees(replicate, shard, context)
    if shard == -1 and replicate == -1:
        solved = Degrees(1, groups, context)
    elif shard == -1:
        solved = Degrees(replicate, max(1, groups // replicate), context)
    elif replicate == -1:
        solved = Degrees(max(1, groups // shard), shard, context)
    if solved.data != groups:
        options = ", ".join(f"{n} × {groups // n}" for n in divisors(groups))
        raise WrongValueError(
            found,
            why=f"their product needs {needed_processes(shard, replicate, context)}, but the run has {processes}",
            remedy=f"for {processes}, shard × replicate can be {options}, and one of the two can be -1 (computed "
            "from the other one). `worldsmith plan … --fit` finds degrees that fit into the GPU memory",
        )
    return solved


def needed_processes(shard: int, replicate: int, context: int) -> str:
    """Returns the number of processes that the degrees require as text, such as "8 processes".

    If a degree is -1, the text is "a multiple of 8 processes".
    """
    product = max(shard, 1) * max(replicate, 1) * context
    open_ended = "" if min(shard, replicate) > 0 else "a multiple of "
    return f"{open_ended}{product} process{'es' * (product > 1)}"


def check_heads(context: int, heads: int, key_heads: int) -> None:
    """Raises WrongValueError if the attention heads cannot be divided evenly among `context` ranks.

    With fewer key heads than ranks, several ranks have a copy of the same key head.

    Args:
        context: Context-parallel degree.
        heads: Number of query heads.
        key_heads: Number of key and value heads.
    """
    works = [n for n in divisors(heads) if key_heads % n == 0 or n % key_heads == 0]
    if context not in works:
        raise WrongValueError(
            {f"parallelism.{NAMES[2]}": context},
            why=f"{heads} attention heads and {key_heads} key and value heads cannot be divided evenly among the ranks",
            remedy=f"for this network these are possible: {', '.join(map(str, works))}",
        )


def divisors(number: int) -> list[int]:
    """Returns all divisors of a positive number in ascending order."""
    return [n for n in range(1, number + 1) if number % n == 0]
