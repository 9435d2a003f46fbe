"""Every full-size recipe of Wan is sound on 8 ranks."""

from __future__ import annotations

import pytest
from rehearsals import check_eight, full_size


@pytest.mark.parametrize("name", full_size("wan"))
def test_a_full_size_recipe_on_8_ranks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_eight(name, monkeypatch)
