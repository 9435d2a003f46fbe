"""The sums of parallel degrees, and the words when they do not add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.distributed.degrees import Degrees, check_heads, fit_degrees
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
    for degrees in ((0, 1, 8), (1, 0, 8), (-2, 1, 8)):
        with pytest.raises(ValueError, match="positive number, or -1"):
            fit_degrees(*degrees)
    with pytest.raises(ValueError, match="context_parallel_shard_degree must be a positive number; found 0"):
        fit_degrees(-1, 1, 8, context=0)


def test_context_lies_over_the_other_degrees_and_must_divide_the_processes() -> None:
    assert fit_degrees(-1, 2, 8, context=4) == Degrees(2, 4, 4)
    assert str(fit_degrees(-1, 2, 8, context=4)) == "replicate 2 × shard 4; context 4, so 2 × data"
    with pytest.raises(ValueError, match=r"degree = 3, but the run has 8 processes.*these work: 1, 2, 4, 8$"):
        fit_degrees(-1, 1, 8, context=3)


def test_heads_are_shared_evenly_or_the_message_says_what_would_work() -> None:
    for context in (1, 2, 4, 8, 16, 32):  # Nano: 32 heads, 8 key heads
        check_heads(context, 32, 8)
    with pytest.raises(ValueError, match=r"= 64 cannot share 32 attention heads.*these work: 1, 2, 4, 8, 16, 32$"):
        check_heads(64, 32, 8)
    with pytest.raises(ValueError, match=r"= 4 cannot share 12 .* 6 key and value heads.*these work: 1, 2, 3, 6, 12$"):
        check_heads(4, 12, 6)


@given(shard=st.integers(-1, 16), replicate=st.integers(-1, 16), world=st.integers(1, 32), context=st.integers(1, 8))
def test_whatever_is_accepted_adds_up_and_keeps_what_was_asked(
    shard: int, replicate: int, world: int, context: int
) -> None:
    """Nothing is clamped: a degree that is not -1 is used as it was written, or the call fails."""
    try:
        found = fit_degrees(shard, replicate, world, context=context)
    except ValueError:
        fits = (
            shard != 0
            and replicate != 0
            and world % context == 0
            and (world % abs(shard) == 0 if replicate == -1 else world % abs(replicate) == 0 if shard == -1 else False)
        )
        assert not fits or (shard, replicate) == (-1, -1)
        return
    assert found.replicate * found.shard == world
    assert found.data * found.context == world
    assert shard in (-1, found.shard)
    assert replicate in (-1, found.replicate)


def test_one_process_agrees_with_itself() -> None:
    world = World()
    assert (world.broadcast("x"), world.gather(3), world.sum(1, 2.5)) == ("x", [3], [1.0, 2.5])
    assert world.any(True)
    assert not world.any(False)
    assert (world.data_rank, world.data_size, world.context_parallel, world.data_sum(3)) == (0, 1, 1, [3.0])
