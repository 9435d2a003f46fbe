"""The seed of what a network draws itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from toy_family import Row

from worldsmith.distributed.world import World
from worldsmith.tasks.task import Task
from worldsmith.training.step import network_seed


def seed_of(position: int, *, seed: int = 1, rank: int = 0, group: int = 1) -> int:
    world: Any = World(rank=rank, size=4, context_group=SimpleNamespace(size=lambda: group) if group > 1 else None)  # type: ignore[arg-type]
    task: Any = SimpleNamespace(world=world, name_samples=lambda batch: Task.name_samples(task, batch))
    return network_seed(task, [Row("a", position, [], [], 0), Row("b", 99, [], [], 0)], seed)


def test_a_pack_has_one_seed_on_every_rank_and_each_rank_of_a_context_group_its_own() -> None:
    assert len({seed_of(7, rank=rank) for rank in range(4)}) == 1
    assert len({seed_of(7), seed_of(8), seed_of(7, seed=2)}) == 3
    shared = [seed_of(7, rank=rank, group=2) for rank in range(4)]
    assert shared[:2] == shared[2:]
    assert shared[0] != shared[1]
