"""Reads the metrics files of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from worldsmith.monitor.metrics_log import records


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns all complete records of a metrics file in order, as dicts with `step` and the metrics by name."""
    return [record for _, record in records(path) if record is not None]
