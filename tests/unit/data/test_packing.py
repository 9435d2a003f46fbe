from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.data.stream.packing import SequentialPacker


def packs(
    sizes: list[int], cap: int | None, count: int | None = None, lookahead: int = 10
) -> list[list[tuple[int, int]]]:
    """All packs of (number, size) samples."""
    packer = SequentialPacker(lambda s: s[1], max_sequence_length=cap, max_samples_per_batch=count, lookahead=lookahead)
    source = iter(list(enumerate(sizes)))
    return list(iter(lambda: packer.pack(source), []))


def test_the_cap_is_exclusive() -> None:
    assert packs([5, 5], 10) == [[(0, 5)], [(1, 5)]]
    assert packs([5, 4], 10) == [[(0, 5), (1, 4)]]


def test_samples_set_aside_come_first_in_the_next_pack_in_order() -> None:
    assert packs([6, 7, 8, 2, 1], 10) == [[(0, 6), (3, 2), (4, 1)], [(1, 7)], [(2, 8)]]


def test_lookahead_limits_how_far_a_small_sample_is_sought() -> None:
    """With 10 samples that do not fit in between, the small one is not reached; with 9 it is."""
    assert packs([6, *[7] * 10, 1], 10)[0] == [(0, 6)]
    assert packs([6, *[7] * 9, 1], 10)[0] == [(0, 6), (10, 1)]
    assert packs([6, 7, 1], 10, lookahead=1)[0] == [(0, 6)]


def test_count_mode_ignores_sizes() -> None:
    assert [len(p) for p in packs([10**9] * 7, None, count=3)] == [3, 3, 1]


def test_a_pack_ends_at_the_cap_that_it_meets_first() -> None:
    found = [[size for _, size in pack] for pack in packs([3, 3, 3, 9, 1], 10, count=2)]
    assert found == [[3, 3], [3, 1], [9]]


def test_a_cap_is_required_and_the_message_says_so() -> None:
    with pytest.raises(ValueError, match=r"set max_sequence_length .*, max_samples_per_batch .*, or both"):
        packs([1], None, None)


def test_a_sample_that_fits_no_pack_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="fits into no pack"):
        packs([10], 10)


@given(st.lists(st.integers(1, 99), max_size=120), st.integers(1, 12))
def test_nothing_is_lost_or_doubled_and_the_cap_holds(sizes: list[int], lookahead: int) -> None:
    """Each sample is in one pack, every pack is below the cap, and the oldest waiting sample is always taken."""
    made = packs(sizes, 100, lookahead=lookahead)
    assert sorted(s for pack in made for s in pack) == list(enumerate(sizes))
    waiting = set(range(len(sizes)))
    for pack in made:
        assert sum(size for _, size in pack) < 100
        assert pack[0][0] == min(waiting)
        assert [n for n, _ in pack] == sorted(n for n, _ in pack)
        waiting -= {n for n, _ in pack}


@given(st.lists(st.integers(1, 99), min_size=1, max_size=60))
def test_a_sample_is_passed_over_only_when_it_did_not_fit(sizes: list[int]) -> None:
    """Replays each pack: a waiting sample before the pack's last one would have broken the cap at its turn."""
    waiting = list(enumerate(sizes))
    for pack in packs(sizes, 100, lookahead=1000):
        total = 0
        for sample in list(waiting):
            if sample in pack:
                total += sample[1]
                waiting.remove(sample)
            else:
                assert total + sample[1] >= 100
