"""The sums of parallel degrees, and the words when they do not add up."""

from __future__ import annotations

import pytest

from worldsmith.distributed.degrees import Degrees, fit_degrees
from worldsmith.distributed.world import World


@pytest.mark.parametrize(
    ("shard", "replicate", "world", "expected"),
    [
        (-1, 1, 8, Degrees(1, 8)),
        (-1, 2, 8, Degrees(2, 4)),
        (4, -1, 8, Degrees(2, 4)),
        (1, -1, 8, Degrees(8, 1)),
        (-1, -1, 8, Degrees(1, 8)),
        (-1, 1, 1, Degrees(1, 1)),
        (4, 2, 8, Degrees(2, 4)),
    ],
)
def test_minus_one_fits(shard: int, replicate: int, world: int, expected: Degrees) -> None:
    assert fit_degrees(shard, replicate, world) == expected


@pytest.mark.parametrize(("shard", "replicate", "world"), [(8, 1, 4), (4, 1, 8), (3, -1, 8), (-1, 3, 8), (-1, 16, 8)])
def test_sums_that_do_not_fit_name_what_would(shard: int, replicate: int, world: int) -> None:
    with pytest.raises(ValueError, match=rf"but the run has {world} processes .*these work: {world} × 1"):
        fit_degrees(shard, replicate, world)


def test_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="positive number, or -1"):
        fit_degrees(0, 1, 8)


def test_one_process_agrees_with_itself() -> None:
    world = World()
    assert (world.broadcast("x"), world.gather(3), world.sum(1, 2.5)) == ("x", [3], [1.0, 2.5])
    assert world.any(True)
    assert not world.any(False)
