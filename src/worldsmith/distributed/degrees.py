"""The arithmetic of parallel degrees: what was asked, what it needs, what would work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Degrees:
    """How the processes are arranged: `replicate` groups of `shard` processes each.

    Every `context` neighbours among them work on the same packs; that divides the data, not the weights.
    """

    replicate: int
    shard: int
    context: int = 1

    @property
    def data(self) -> int:
        """Into how many shares the data is cut."""
        return self.replicate * self.shard // self.context

    def __str__(self) -> str:
        text = f"replicate {self.replicate} × shard {self.shard}"
        return f"{text}; context {self.context}, so {self.data} × data" if self.context > 1 else text


def fit_degrees(shard: int, replicate: int, world_size: int, *, context: int = 1) -> Degrees:
    """Solves -1 ("as many as fit"); replicate × shard must be the number of processes, `context` must divide it.

    Raises ValueError with the sum and with the degrees that would work.
    """
    for name, degree in (("data_parallel_shard_degree", shard), ("data_parallel_replicate_degree", replicate)):
        if degree < 1 and degree != -1:
            raise ValueError(f"{name} must be a positive number, or -1 for as many as fit; found {degree}")
    if context < 1:
        raise ValueError(f"context_parallel_shard_degree must be a positive number; found {context}")
    solved = Degrees(replicate, shard, context)
    if shard == -1 and replicate == -1:
        solved = Degrees(1, world_size, context)
    elif shard == -1:
        solved = Degrees(replicate, max(1, world_size // replicate), context)
    elif replicate == -1:
        solved = Degrees(max(1, world_size // shard), shard, context)
    processes = f"the run has {world_size} process{'es' * (world_size > 1)}"
    if solved.replicate * solved.shard != world_size:
        options = [f"{world_size // n} × {n}" for n in divisors(world_size)]
        raise ValueError(
            f"data_parallel_replicate_degree × data_parallel_shard_degree = {solved.replicate} × {solved.shard} = "
            f"{solved.replicate * solved.shard}, but {processes} "
            f"(asked: replicate {replicate}, shard {shard}); for {world_size} these work: {', '.join(options)}, "
            "or -1 for one of the two"
        )
    if world_size % context:
        raise ValueError(
            f"context_parallel_shard_degree = {context}, but {processes}, which cannot be cut into groups of "
            f"{context}; for {world_size} these work: {', '.join(map(str, divisors(world_size)))}"
        )
    return solved


def check_heads(context: int, heads: int, key_heads: int) -> None:
    """Raises ValueError unless `context` ranks can share the attention heads of one sequence evenly.

    With fewer key heads than ranks, several ranks get a copy of the same key head.
    """
    works = [n for n in divisors(heads) if key_heads % n == 0 or n % key_heads == 0]
    if context not in works:
        raise ValueError(
            f"context_parallel_shard_degree = {context} cannot share {heads} attention heads and {key_heads} key and "
            f"value heads evenly; for this network these work: {', '.join(map(str, works))}"
        )


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
