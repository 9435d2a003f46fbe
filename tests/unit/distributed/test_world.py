"""A run of one process needs no process group."""

from __future__ import annotations

from worldsmith.distributed.world import World


def test_one_process_agrees_with_itself() -> None:
    world = World()
    assert (world.broadcast("x"), world.gather(3), world.sum(1, 2.5)) == ("x", [3], [1.0, 2.5])
    assert world.any(True)
    assert not world.any(False)
    assert (world.data_rank, world.data_size, world.context_parallel, world.data_sum(3)) == (0, 1, 1, [3.0])
