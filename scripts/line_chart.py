"""Line charts as SVG text, for pictures of docs/: plain, on white, legible in light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from math import log

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0528a", "#8a6d00", "#56789a", "#333333", "#9a3b3b")
"""Told apart by people who are colour-blind as well (after Okabe and Ito)."""
INK, GREY, RULE = "#1c2f42", "#5a6b7b", "#dfe5ea"
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, NAMES = 420, 330, 54, 46, 46, 150


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    mark: tuple[float, float] | None = None
    """A point that stands out."""


@dataclass(frozen=True)
class Panel:
    """Axes are logarithmic, `y` only where `log_y`; ticks are pairs of a value and its words."""

    title: str
    x: str
    y: str
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    lines: Sequence[Line]
    log_y: bool = True
    band: tuple[float, float, str] | None = None
    """From and to on the y axis, with what it is."""
    rules: Sequence[tuple[float, str]] = field(default=())
    """Heights with a dashed rule across, with what they are."""

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point, held inside the panel."""
        across = position(x, self.x_ticks[0][0], self.x_ticks[-1][0], logarithmic=True)
        up = position(y, self.y_ticks[0][0], self.y_ticks[-1][0], logarithmic=self.log_y)
        width, height = WIDTH - LEFT, HEIGHT - TOP - BOTTOM
        return round(LEFT + across * width, 1), round(TOP + (1 - up) * height, 1)


def position(value: float, low: float, high: float, *, logarithmic: bool) -> float:
    """From 0 to 1."""
    if logarithmic:
        value, low, high = log(value), log(low), log(high)
    return min(1.0, max(0.0, (value - low) / (high - low)))


def draw(panels: Sequence[Panel]) -> str:
    """The panels side by side."""
    width = len(panels) * (WIDTH + NAMES) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" fill="{INK}">',
        f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate({number * (WIDTH + NAMES)},0)">', *draw_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_panel(panel: Panel) -> list[str]:
    bottom, middle = HEIGHT - BOTTOM, (LEFT + WIDTH) / 2
    parts = [f'<text x="{LEFT}" y="18" font-size="14" font-weight="bold">{escape(panel.title)}</text>']
    parts.append(f'<text x="{LEFT}" y="36" fill="{GREY}">{escape(panel.y)}</text>')
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle" fill="{GREY}">{escape(panel.x)}</text>')
    if panel.band is not None:
        low, high, name = panel.band
        (_, lower), (_, upper) = panel.at(panel.x_ticks[0][0], low), panel.at(panel.x_ticks[0][0], high)
        parts.append(
            f'<rect x="{LEFT}" y="{upper}" width="{WIDTH - LEFT}" height="{lower - upper:.1f}" fill="#f3ead2"/>'
        )
        parts.append(f'<text x="{LEFT + 6}" y="{upper + 14:.1f}" fill="#8a6d00" font-size="11">{escape(name)}</text>')
    for value, words in panel.x_ticks:
        x, _ = panel.at(value, panel.y_ticks[0][0])
        parts.append(f'<path d="M{x},{TOP} V{bottom}" stroke="{RULE}"/>')
        parts.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle" font-size="11">{words}</text>')
    for value, words in panel.y_ticks:
        _, y = panel.at(panel.x_ticks[0][0], value)
        parts.append(f'<path d="M{LEFT},{y} H{WIDTH}" stroke="{RULE}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" font-size="11">{words}</text>')
    for value, words in panel.rules:
        _, y = panel.at(panel.x_ticks[0][0], value)
        parts.append(f'<path d="M{LEFT},{y} H{WIDTH}" stroke="{GREY}" stroke-dasharray="2 3"/>')
        place = f'x="{WIDTH - 6}" y="{y + 13:.1f}" text-anchor="end"'
        parts.append(f'<text {place} fill="{GREY}" font-size="11">{escape(words)}</text>')
    heights = spread([panel.at(*line.points[-1])[1] for line in panel.lines])
    for line, colour, height in zip(panel.lines, COLOURS, heights, strict=False):
        way = " L".join(f"{x},{y}" for x, y in (panel.at(*point) for point in line.points))
        dashes = ' stroke-dasharray="6 4"' if line.dashed else ""
        parts.append(f'<path d="M{way}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        if line.mark is not None:
            x, y = panel.at(*line.mark)
            parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>')
        x, y = panel.at(*line.points[-1])
        parts.append(f'<path d="M{x + 2},{y} L{WIDTH + 6},{height:.1f}" stroke="{colour}" stroke-width="0.7"/>')
        parts.append(f'<text x="{WIDTH + 9}" y="{height + 4:.1f}" fill="{colour}">{escape(line.name)}</text>')
    return parts


def spread(heights: Sequence[float], apart: float = 15.0) -> list[float]:
    """The heights moved so that none is nearer than `apart` to the next, in their order and inside the panel."""
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    found = list(heights)
    for above, below in pairwise(order):
        found[below] = max(found[below], found[above] + apart)
    limit = HEIGHT - BOTTOM
    for place in reversed(order):
        found[place] = min(found[place], limit)
        limit = found[place] - apart
    return found
