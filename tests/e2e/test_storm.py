"""Random attacks on training runs, as tests/support/storm.py describes them: nothing is lost, left, or wrongly said."""

from __future__ import annotations

from pathlib import Path

import pytest
import storm


@pytest.mark.parametrize(
    ("seed", "attacks"),
    [
        (0, 3),
        pytest.param(0, 8, marks=pytest.mark.slow),
        pytest.param(1, 200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_a_storm_of_attacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, attacks: int) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", "")  # which it sets, and what is put back
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    weather = storm.Storm(tmp_path, seed)
    for _ in range(attacks):
        weather.attack()
    weather.finish()
