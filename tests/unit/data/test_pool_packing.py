"""Packing from a pool: nothing lost, caps kept, the oldest first, fuller than in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.resolution import target_size
from worldsmith.data.stream.packing import AlikePacker, PaddedPacker, PoolPacker, SequentialPacker, fullest

Sample = tuple[int, int]
"""(number, tokens)"""


def packer_of(kind: type, cap: int | None, lookahead: int, count: int | None = None) -> PoolPacker[Sample]:
    return kind(lambda s: s[1], max_sequence_length=cap, max_samples_per_batch=count, lookahead=lookahead)


def all_packs(packer: PoolPacker[Sample], samples: Iterator[Sample]) -> list[list[Sample]]:
    return list(iter(lambda: packer.pack(samples), []))


def packs(
    kind: type, sizes: list[int], cap: int | None, lookahead: int, count: int | None = None
) -> list[list[Sample]]:
    return all_packs(packer_of(kind, cap, lookahead, count), iter(list(enumerate(sizes))))


def test_the_oldest_is_followed_by_what_fills_the_pack() -> None:
    assert packs(PoolPacker, [5, 7, 3, 4, 1], 10, 10) == [[(0, 5), (3, 4)], [(1, 7), (4, 1)], [(2, 3)]]


def test_padded_packs_hold_samples_of_like_length() -> None:
    assert packs(PaddedPacker, [5, 9, 2, 4, 10], 31, 10) == [[(0, 5), (3, 4), (2, 2)], [(1, 9), (4, 10)]]
    assert packs(PaddedPacker, [5, 9, 2, 4, 10], None, 10, count=2) == [[(0, 5), (3, 4)], [(1, 9), (2, 2)], [(4, 10)]]


def test_a_sample_that_fits_no_pack_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="a sample of 10 tokens fits into no pack of 10"):
        packs(PoolPacker, [10], 10, 4)


@pytest.mark.parametrize("kind", [PoolPacker, PaddedPacker])
@given(sizes=st.lists(st.integers(1, 99), max_size=100), lookahead=st.integers(1, 40))
def test_each_sample_once_below_the_cap_the_oldest_first(kind: type, sizes: list[int], lookahead: int) -> None:
    made = packs(kind, sizes, 100, lookahead)
    assert sorted(sample for pack in made for sample in pack) == list(enumerate(sizes))
    waiting = set(range(len(sizes)))
    for pack in made:
        lengths = [size for _, size in pack]
        assert (sum(lengths) if kind is PoolPacker else max(lengths) * len(lengths)) < 100
        assert pack[0][0] == min(waiting)
        waiting -= {number for number, _ in pack}


@pytest.mark.parametrize("kind", [PoolPacker, PaddedPacker])
@given(
    sizes=st.lists(st.integers(1, 99), min_size=1, max_size=80), lookahead=st.integers(1, 20), done=st.integers(0, 9)
)
def test_it_goes_on_from_what_is_left_in_the_pool(kind: type, sizes: list[int], lookahead: int, done: int) -> None:
    whole = packs(kind, sizes, 100, lookahead)
    source = iter(list(enumerate(sizes)))
    first = packer_of(kind, 100, lookahead)
    begun = [pack for pack in (first.pack(source) for _ in range(done)) if pack]
    resumed = all_packs(packer_of(kind, 100, lookahead), iter([*first.buffer, *source]))
    assert begun + resumed == whole


@given(st.lists(st.integers(1, 30), max_size=9), st.integers(0, 60), st.integers(0, 9))
def test_no_other_choice_is_fuller(lengths: list[int], room: int, most: int) -> None:
    """Against all subsets."""
    chosen = fullest(lengths, room, most)
    subsets = [s for size in range(min(most, len(lengths)) + 1) for s in combinations(lengths, size) if sum(s) <= room]
    best = max(map(sum, subsets))
    assert chosen == sorted(set(chosen))
    assert sum(lengths[number] for number in chosen) == best
    assert len(chosen) == min(len(s) for s in subsets if sum(s) == best)


@given(sizes=st.lists(st.integers(1, 99), max_size=60), lookahead=st.integers(1, 40), count=st.integers(1, 5))
def test_both_caps_hold_at_once(sizes: list[int], lookahead: int, count: int) -> None:
    made = packs(PoolPacker, sizes, 100, lookahead, count)
    assert sorted(sample for pack in made for sample in pack) == list(enumerate(sizes))
    assert all(len(pack) <= count and sum(size for _, size in pack) < 100 for pack in made)


def chats(cap: int) -> list[int]:
    """Lengths like those of chats with images."""
    draw = random.Random(0)
    return [min(cap // 2, int(draw.lognormvariate(6.5, 1.0))) + 20 for _ in range(2000)]


def clips(tier: str) -> list[int]:
    """Clips of whole shots at 24 frames a second, 61 frames to 10 s, of which half last more than 4 s.

    70 % are 16:9, 15 % 9:16, 10 % 4:3, 5 % square; half of the captions are plain (30 to 150 tokens) and half
    structured (around 500), one in ten is empty.
    """
    draw, grid, made = random.Random(0), LatentGrid(4, 16, 2), []
    for _ in range(1000):
        size = draw.choices([(1920, 1080), (1080, 1920), (1440, 1080), (1080, 1080)], [70, 15, 10, 5])[0]
        frames = grid.usable_frames(round(24 * min(10.0, max(61 / 24, draw.lognormvariate(1.4, 0.5)))))
        caption = draw.choice([draw.randint(30, 150), min(2048, int(draw.lognormvariate(6.2, 0.4)))])
        width, height = target_size(tier, *size)
        latent_shape = grid.latent_shape(frames, height, width)
        made.append(grid.sample_tokens(0 if draw.random() < 0.1 else caption, latent_shape))
    return made


@pytest.mark.parametrize("lookahead", [10, 32])
@pytest.mark.parametrize(
    ("sizes", "cap"),
    [
        pytest.param(chats(4096), 4096, id="chats-4096"),
        pytest.param(chats(16000), 16000, id="chats-16000"),
        pytest.param(clips("256"), 13312, id="clips-256-13312"),
        pytest.param(clips("256"), 45056, id="clips-256-45056"),
        pytest.param(clips("480"), 45056, id="clips-480-45056"),
        pytest.param(clips("720"), 74000, id="clips-720-74000"),
    ],
)
def test_packs_of_mixed_lengths_are_full(sizes: list[int], cap: int, lookahead: int) -> None:
    """At least 97 %, and more than in order."""
    fill = {}
    for kind in (SequentialPacker, PoolPacker):
        made = packs(kind, sizes, cap, lookahead)[:-3]  # the last ones are what is left
        fill[kind] = sum(size for pack in made for _, size in pack) / (cap * len(made))
    assert fill[PoolPacker] >= 0.97
    assert fill[PoolPacker] > fill[SequentialPacker]


def test_padding_is_less_than_in_order() -> None:
    draw = random.Random(1)
    sizes = [draw.randint(20, 2000) for _ in range(1000)]

    def padding(made: list[list[Sample]]) -> int:
        return sum(max(size for _, size in pack) * len(pack) - sum(size for _, size in pack) for pack in made)

    in_order = packs(SequentialPacker, sizes, None, 32, count=4)
    assert padding(packs(PaddedPacker, sizes, None, 32, count=4)) < 0.4 * padding(in_order)


def test_alike_packs_hold_one_shape_the_oldest_first_and_lose_nothing() -> None:
    sizes = [5, 7, 5, 5, 7, 9, 7]
    assert packs(AlikePacker, sizes, None, 10, 2) == [
        [(0, 5), (2, 5)], [(1, 7), (4, 7)], [(3, 5)], [(5, 9)], [(6, 7)],
    ]  # fmt: skip
    assert packs(AlikePacker, sizes, 15, 2) == [[(0, 5), (2, 5)], [(1, 7), (4, 7)], [(3, 5)], [(5, 9)], [(6, 7)]]


def test_alike_packs_compare_shapes_where_samples_have_them() -> None:
    packer = AlikePacker[Sample](
        lambda s: s[1], max_sequence_length=None, max_samples_per_batch=2, lookahead=4, shape=lambda s: s[1] % 2
    )
    assert all_packs(packer, iter([(0, 1), (1, 2), (2, 3), (3, 4)])) == [[(0, 1), (2, 3)], [(1, 2), (3, 4)]]
