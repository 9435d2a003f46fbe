"""Every full-size recipe of CogVideoX and FLUX is sound on 8 ranks, and one of each family on 2."""

from __future__ import annotations

import pytest
from rehearsals import check_recipe, rehearsals


@pytest.mark.parametrize(("name", "ranks"), rehearsals("cogvideox", "flux"))
def test_a_full_size_recipe_is_sound(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_recipe(name, ranks, monkeypatch)
