"""Every full-size recipe of Wan and LTX-Video is sound on 8 ranks, and one of each family on 2."""

from __future__ import annotations

import pytest
from rehearsals import check_recipe, rehearsals


@pytest.mark.parametrize(("name", "ranks"), rehearsals("wan", "ltx_video"))
def test_a_full_size_recipe_is_sound(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_recipe(name, ranks, monkeypatch)
