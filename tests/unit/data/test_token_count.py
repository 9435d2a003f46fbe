from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.data.clips.token_count import latent_shape, sample_tokens, usable_frames, vision_tokens


@pytest.mark.parametrize(
    ("width", "height", "at_61", "at_189"),
    [(320, 192, 960, 2880), (832, 480, 6240, 18720), (1280, 704, 14080, 42240), (1280, 720, 14720, 44160),
     (1104, 832, 14560, 43680), (1360, 768, 16512, 49536)],
)  # fmt: skip
def test_published_token_counts(width: int, height: int, at_61: int, at_189: int) -> None:
    """The ceil column of the published table, with sides whose latents are odd."""
    assert vision_tokens(61, height, width) == at_61
    assert vision_tokens(189, height, width) == at_189


def test_loader_formula_counts_text_plus_one_plus_two_per_clip() -> None:
    assert sample_tokens(10, 17, 64, 64) == 10 + 1 + 20 + 2
    assert latent_shape(17, 64, 64) == (5, 4, 4)


@given(st.integers(1, 1000))
def test_usable_frames_is_the_largest_4k_plus_1(n: int) -> None:
    assert usable_frames(n) == max(k for k in range(1, n + 1) if k % 4 == 1)
