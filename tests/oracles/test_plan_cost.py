"""An exact plan of a full-size run stays within what a laptop has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from plan_cost import cost


@pytest.mark.slow
def test_nano_on_eight_ranks_is_planned_in_a_minute_and_4_gb() -> None:
    """Seconds of a processor: those of the clock depend on what else the machine does."""
    seconds, memory = cost("vision_sft_nano")
    assert seconds < 60
    assert memory < 4
