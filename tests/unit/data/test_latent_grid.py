from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.data.clips.latent_grid import LatentGrid

GRID = LatentGrid(frames=4, pixels=16, patch=2)


@pytest.mark.parametrize(
    ("width", "height", "at_61", "at_189"),
    [(320, 192, 960, 2880), (832, 480, 6240, 18720), (1280, 704, 14080, 42240), (1280, 720, 14720, 44160),
     (1104, 832, 14560, 43680), (1360, 768, 16512, 49536)],
)  # fmt: skip
def test_published_token_counts(width: int, height: int, at_61: int, at_189: int) -> None:
    """The ceil column of the published table, with sides whose latents are odd."""
    assert GRID.vision_tokens(GRID.latent_shape(61, height, width)) == at_61
    assert GRID.vision_tokens(GRID.latent_shape(189, height, width)) == at_189


def test_loader_formula_counts_text_plus_one_plus_two_per_clip() -> None:
    assert GRID.latent_shape(17, 64, 64) == (5, 4, 4)
    assert GRID.sample_tokens(10, (5, 4, 4)) == 10 + 1 + 20 + 2


@given(st.integers(1, 1000))
def test_usable_frames_is_the_largest_4k_plus_1(n: int) -> None:
    assert GRID.usable_frames(n) == max(k for k in range(1, n + 1) if k % 4 == 1)


@given(st.integers(1, 1000))
def test_latent_frames_cover_what_they_stand_for(n: int) -> None:
    assert GRID.pixel_frames(GRID.latent_frames(n)) == min(k for k in range(n, n + 4) if k % 4 == 1)


def test_another_model_divides_otherwise() -> None:
    grid = LatentGrid(frames=8, pixels=8, patch=1)
    assert (grid.usable_frames(16), grid.latent_shape(9, 64, 96), grid.vision_tokens((2, 8, 12))) == (
        9,
        (2, 8, 12),
        192,
    )
