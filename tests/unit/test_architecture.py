"""Every function that `docs/architecture.md` names is there."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
STATIONS = re.findall(r"\| \d+ \| `([\w.]+):([\w.]+)` \|", PAGE.read_text(encoding="utf-8"))


def test_the_page_names_stations() -> None:
    assert len(STATIONS) > 25


@pytest.mark.parametrize(("module", "name"), STATIONS, ids=lambda text: text)
def test_a_station_exists(module: str, name: str) -> None:
    assert callable(reduce(getattr, name.split("."), importlib.import_module(f"worldsmith.{module}")))
