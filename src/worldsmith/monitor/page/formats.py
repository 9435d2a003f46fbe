"""How numbers, times and names are written on a page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup


def count(value: Any) -> str:
    """12345 as 12 345, with spaces that do not break."""
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, (int, float)) else str(value)


def plural(number: float, noun: str) -> str:
    """The number with its noun: 1 clip, 24 clips."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def size(count: float) -> str:
    """Bytes: 12.3 GiB, 812 MiB."""
    unit, name = next(
        ((2**power, name) for power, name in ((30, "GiB"), (20, "MiB")) if count >= 2**power / 2), (1, "B")
    )
    return f"{count / unit:,.3g} {name}" if count < 1000 * unit else f"{count / unit:,.0f} {name}"


def seconds(value: float) -> str:
    """1.23 s, 45 ms."""
    return f"{value:.3g} s" if value >= 0.1 else f"{1000 * value:.3g} ms"


def duration(seconds: float) -> str:
    """The two largest units."""
    seconds = max(0, round(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts: list[str] = []
    for name, size in units:
        amount, seconds = divmod(seconds, size)
        if amount or (parts and len(parts) < 2):
            parts.append(f"{amount} {name}")
    return " ".join(parts[:2]) or "0 s"


def time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def words(name: str) -> str:
    return name.replace("_", " ").replace("/", " · ")


def breakable(path: str) -> Markup:
    """A path that may go on in the next line after a dot."""
    return Markup("<wbr>").join(f"{part}." for part in path.split("."))[:-1]


FILTERS = {
    **{"count": count, "figure": figure, "size": size, "duration": duration, "time": time},
    **{"words": words, "breakable": breakable},
}
