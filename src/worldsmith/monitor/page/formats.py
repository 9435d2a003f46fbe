"""Formats numbers, times and names for the HTML report."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

from markupsafe import Markup

from worldsmith.monitor.short_text import format_bytes, format_duration

MOST_WRITTEN_OUT = 1e9
"""Smallest number that is formatted with an exponent."""


def format_count(value: Any) -> str:
    """Formats a number with thousands separators, such as 12,345; any other value is returned as `str(value)`."""
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


def plural(number: float, noun: str) -> str:
    """Formats a number with its noun, in the plural unless the number is 1: "1 clip", "24 clips"."""
    return f"{format_count(number)} {noun}{'' if number == 1 else 's'}"


def format_float(value: float | None, digits: int = 4) -> str:
    """Formats a number with `digits` significant digits, such as 0.01234, 1,570 or 1.2e+12; None as "–"."""
    if value is None:
        return "–"
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if 1e3 <= abs(value) < MOST_WRITTEN_OUT else text


def size(count: float) -> str:
    """Formats bytes, such as 12.3 GiB, 212 MiB or 1,024 B."""
    if count < 2**19:
        return f"{count:,.0f} B"
    return format_bytes(count, gib=",.3g" if count < 1000 * 2**30 else ",.0f", mib=".3g", gib_from=2**29)


def seconds(value: float) -> str:
    """Formats seconds, such as 1.23 s or 45 ms."""
    return f"{value:.3g} s" if value >= 0.1 else f"{1000 * value:.3g} ms"


def time(moment: datetime) -> str:
    """Formats a time in UTC, such as "2025-01-31 14:05 UTC"."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def words(name: str) -> str:
    return name.replace("_", " ").replace("/", " · ")


def breakable(path: str) -> Markup:
    """Returns a dotted path as HTML that can be wrapped after each dot."""
    return Markup("<wbr>").join(f"{part}." for part in path.split("."))[:-1]


duration = partial(format_duration, spaced=True)
FILTERS = {
    **{"count": format_count, "figure": format_float, "size": size, "duration": duration, "time": time},
    **{"words": words, "breakable": breakable},
}
