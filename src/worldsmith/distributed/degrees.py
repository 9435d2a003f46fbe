"""The arithmetic of parallel degrees: what was asked, what it needs, what would work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Degrees:
    """How the processes are arranged: `replicate` groups of `shard` processes each."""

    replicate: int
    shard: int


def fit_degrees(shard: int, replicate: int, world_size: int) -> Degrees:
    """Solves -1 ("as many as fit") and checks that replicate × shard is the number of processes.

    Raises ValueError with the sum and with the degrees that would work.
    """
    for name, degree in (("data_parallel_shard_degree", shard), ("data_parallel_replicate_degree", replicate)):
        if degree < 1 and degree != -1:
            raise ValueError(f"{name} must be a positive number, or -1 for as many as fit; found {degree}")
    solved = Degrees(replicate, shard)
    if shard == -1 and replicate == -1:
        solved = Degrees(1, world_size)
    elif shard == -1:
        solved = Degrees(replicate, max(1, world_size // replicate))
    elif replicate == -1:
        solved = Degrees(max(1, world_size // shard), shard)
    if solved.replicate * solved.shard != world_size:
        options = [f"{world_size // n} × {n}" for n in range(1, world_size + 1) if world_size % n == 0]
        raise ValueError(
            f"data_parallel_replicate_degree × data_parallel_shard_degree = {solved.replicate} × {solved.shard} = "
            f"{solved.replicate * solved.shard}, but the run has {world_size} process{'es' * (world_size > 1)} "
            f"(asked: replicate {replicate}, shard {shard}); for {world_size} these work: {', '.join(options)}, "
            "or -1 for one of the two"
        )
    return solved
