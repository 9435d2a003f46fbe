"""Every full-size recipe of Wan and LTX-Video is sound on 8 ranks."""

from __future__ import annotations

import pytest
from rehearsals import check_eight, rehearsals


@pytest.mark.parametrize("name", rehearsals("wan", "ltx_video"))
def test_a_full_size_recipe_on_8_ranks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_eight(name, monkeypatch)
