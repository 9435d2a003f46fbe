"""Figures in a few letters, for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """45s, 3m05s, 2h07m, 3d04h."""
    total = round(seconds)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}s"
    if total < 86400:
        return f"{total // 3600}h{total % 3600 // 60:02d}m"
    return f"{total // 86400}d{total % 86400 // 3600:02d}h"


UNITS = ((1e3, "k"), (1e6, "M"), (1e9, "B"), (1e12, "T"))


def short_number(value: float) -> str:
    """812, 12.3k, 4.5M, 64.0B."""
    if abs(value) < 1e4:
        return f"{value:.0f}"
    return next((f"{value / unit:.1f}{letter}" for unit, letter in UNITS if abs(value) < 1000 * unit), f"{value:.3g}")
