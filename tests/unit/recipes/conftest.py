"""The variables that the shipped recipes read."""

from __future__ import annotations

import pytest
from recipe_environment import PLACES


@pytest.fixture(autouse=True)
def recipe_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLACES:
        monkeypatch.setenv(name, name.lower())
    for name in ("TOKENIZER_PATH", "VIDEOPHYSICS_ROOT", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
