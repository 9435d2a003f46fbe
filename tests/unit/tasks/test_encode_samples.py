"""Before a run, the samples are encoded that its packs can contain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.data.stream.loader import PACKERS
from worldsmith.tasks.encode_samples import sample_limit

SAMPLES = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 12), st.booleans()), min_size=60, max_size=120)
"""Tokens of the latents and of the caption, and whether training drops the caption."""


def sample(number: int, latents: int, text: int) -> Any:
    return SimpleNamespace(number=number, num_tokens=latents + text, text_ids=[0] * text)


def last_encoded(drawn: list[Any], config: Any, packs: int | None) -> int:
    """The number of the last sample that is encoded."""
    are_enough = sample_limit(config, packs)
    return next((n for n, (latents, text, _) in enumerate(drawn) if are_enough(sample(n, latents, text))), len(drawn))


@pytest.mark.parametrize("name", PACKERS)
@given(drawn=SAMPLES, packs=st.integers(1, 6), lookahead=st.integers(1, 8), by_tokens=st.booleans())
def test_no_pack_contains_a_sample_that_is_not_encoded(
    name: str, drawn: list[Any], packs: int, lookahead: int, by_tokens: bool
) -> None:
    limits = {"max_sequence_length": 60, "max_samples_per_batch": None}
    if not by_tokens and name != "pool":
        limits = {"max_sequence_length": None, "max_samples_per_batch": 3}
    packer = PACKERS[name](lambda each: each.num_tokens, lookahead=lookahead, **limits)
    stream = iter(
        [sample(n, latents, 0 if is_dropped else text) for n, (latents, text, is_dropped) in enumerate(drawn)]
    )
    used = [each.number for _ in range(packs) for each in packer.pack(stream)]
    assert max(used) <= last_encoded(drawn, SimpleNamespace(lookahead=lookahead, **limits), packs)


def test_samples_of_later_packs_are_not_encoded() -> None:
    drawn, limits = [(20, 5, False)] * 100, {"max_sequence_length": 60, "max_samples_per_batch": None}
    config = SimpleNamespace(lookahead=4, **limits)
    assert last_encoded(drawn, config, 5) == 18  # 300 tokens are 15 latents of 20 tokens; 4 may wait
    assert last_encoded(drawn, config, None) == 100
