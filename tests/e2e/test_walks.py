"""Call paths of real calls are those of `docs/architecture.md`, and short."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMITS = {
    "A clip becomes a loss": 14,
    "A value in a TOML becomes a field": 9,
    "Arguments become a video": 14,
    "A checkpoint becomes an export": 16,
}
"""Largest number of files."""


@pytest.fixture(scope="module")
def walks() -> dict[str, list[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(ROOT / "scripts" / "walks.py"), "--json"]
    run = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    found: dict[str, list[str]] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("title", LIMITS)
def test_a_call_path_is_short_and_on_the_page(walks: dict[str, list[str]], title: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| \d+ \| `([\w.]+):([\w.]+)` \|", section, re.MULTILINE)
    assert [f"{module}:{function}" for module, function in rows] == walks[title]
    assert len(rows) <= LIMITS[title]
