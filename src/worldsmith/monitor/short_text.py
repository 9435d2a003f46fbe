"""Short forms of numbers for messages."""

from __future__ import annotations

TIMES = (("d", "d", 86400), ("h", "h", 3600), ("m", "min", 60), ("s", "s", 1))
"""Units of time, largest first: (letter, abbreviation, seconds)."""

WEIGHTS_NAMES = {"live": "raw weights", "ema": "EMA weights", "untrained": "untrained weights"}
"""Names of weights for messages, by their names in settings and files."""

MEMORY_NAMES = {"moments": "optimizer state", "average": "EMA weights", "gathered": "all-gathered parameters"}
"""Text for each memory category in messages; a category that is missing here is shown under its internal name."""

FEW_SAMPLES = 10
"""Number of samples below which the 95 % interval of a mean is too narrow to be reliable."""


def format_duration(seconds: float, *, spaced: bool = False) -> str:
    """Formats a duration with its two largest units.

    Args:
        seconds: Duration in seconds.
        spaced: False: 45s, 3m05s, 2h07m, 3d04h. True: 45 s, 3 min 5 s, 2 h 7 min, 3 d 4 h.
    """
    left = max(0, round(seconds))
    first = next((place for place, (_, _, size) in enumerate(TIMES) if left >= size), len(TIMES) - 1)
    parts: list[str] = []
    for letter, word, size in TIMES[first : first + 2]:
        amount, left = divmod(left, size)
        parts.append(f"{amount} {word}" if spaced else f"{amount:0{2 * len(parts)}d}{letter}")
    return (" " if spaced else "").join(parts)


def format_bytes(count: float, *, gib: str = ".2f", mib: str = ".1f", gib_from: float = 2**30) -> str:
    """Formats bytes as 4.56 GiB or 12.3 MiB.

    Args:
        count: Number of bytes.
        gib: Format specification of a number of GiB.
        mib: Format specification of a number of MiB.
        gib_from: Bytes from which GiB are used.
    """
    return f"{count / 2**30:{gib}} GiB" if count >= gib_from else f"{count / 2**20:{mib}} MiB"


UNITS = ((1e3, "k"), (1e6, "M"), (1e9, "B"), (1e12, "T"))


def short_number(value: float) -> str:
    """Formats a number as 812, 12.3k, 4.5M or 64.0B."""
    if abs(value) < 1e4:
        return f"{value:.0f}"
    return next((f"{value / unit:.1f}{letter}" for unit, letter in UNITS if abs(value) < 1000 * unit), f"{value:.3g}")
