"""Draws the rooms of the package, and which uses which, from the imports as they are: docs/images/rooms.svg.

    python scripts/draw_rooms.py [--out FILE]

A room stands above all that it uses. An arrow that follows from others is left out: what a room uses it may also use
through another. `tests/unit/test_rooms.py` fails when the committed picture is no longer that of the code.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import grimp

PACKAGE = Path(__file__).parents[1] / "src" / "worldsmith"
SUBJECTS = {
    "actions": "base classes of commands",
    "checkpoint": "saving, resuming, formats",
    "cli": "the command line",
    "config": "the run tree, ways in and out",
    "data": "the stream of samples",
    "demo": "synthetic data, their metric",
    "dialects": "configs of other systems",
    "distributed": "processes, sharding",
    "evaluation": "what a video shows",
    "files": "atomic writes, checksums",
    "families": "a folder for each model family",
    "models": "what all models share, VAE, LoRA",
    "monitor": "metrics, terminal, records",
    "objectives": "what is minimised",
    "planning": "what a run will need",
    "sampling": "samplers, writing videos",
    "tasks": "data + model + objective",
    "tools": "commands around a run",
    "training": "the trainer of all families",
}
WIDTH, BOX_WIDTH, BOX_HEIGHT, ROW_HEIGHT, MARGIN, PASSAGE = 1060, 200, 48, 96, 16, 12


def find_uses() -> dict[str, set[str]]:
    """Room → the rooms that its modules import."""
    graph = grimp.build_graph(PACKAGE.name, cache_dir=None)
    rooms = sorted(folder.name for folder in PACKAGE.iterdir() if folder.name in SUBJECTS and folder.is_dir())
    uses: dict[str, set[str]] = {room: set() for room in rooms}
    for module in graph.modules:
        room = module.partition(".")[2].partition(".")[0]
        for imported in graph.find_modules_directly_imported_by(module):
            other = imported.partition(".")[2].partition(".")[0]
            if room in uses and other in uses and other != room:
                uses[room].add(other)
    return uses


def floors(uses: dict[str, set[str]]) -> dict[str, int]:
    """Room → 0 for the ground, else one above the highest room that it uses. Raises ValueError for a circle."""
    found: dict[str, int] = {}
    while len(found) < len(uses):
        ready = [room for room in uses if room not in found and uses[room] <= set(found)]
        if not ready:
            raise ValueError(f"rooms that use each other in a circle: {', '.join(sorted(set(uses) - set(found)))}")
        found |= {room: 1 + max((found[other] for other in uses[room]), default=-1) for room in ready}
    return found


def direct(uses: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that do not follow from others."""

    def below(room: str) -> set[str]:
        return uses[room].union(*(below(other) for other in uses[room]))

    return {room: others - set().union(*(below(other) for other in others)) for room, others in uses.items()}


def place(uses: dict[str, set[str]], floor: dict[str, int]) -> tuple[list[list[str]], list[list[str]]]:
    """(the rooms of every floor from left to right, the way of every arrow).

    An arrow that passes a floor has a narrow place of its own there, so that it does not run behind a room. Every place
    moves to the middle of its neighbours, again and again, and the order with the fewest crossings is kept.
    """
    ways = [[room, *(f"{room}>{other}@{level}" for level in range(floor[room] - 1, floor[other], -1)), other]
            for room in sorted(uses) for other in sorted(uses[room])]  # fmt: skip
    links = [pair for way in ways for pair in itertools.pairwise(way)]
    levels = {**floor, **{name: int(name.rpartition("@")[2]) for pair in links for name in pair if "@" in name}}
    rows = [[name for name in sorted(levels) if levels[name] == level] for level in range(max(floor.values()) + 1)]
    neighbours: dict[str, list[str]] = {name: [] for name in levels}
    for upper, lower in links:
        neighbours[upper].append(lower)
        neighbours[lower].append(upper)
    best, fewest = [list(row) for row in rows], len(links) ** 2
    for sweep in range(40):
        for level in range(len(rows)) if sweep % 2 else reversed(range(len(rows))):
            x = positions(rows)
            side = [n for n in range(len(rows)) if (n < level) == bool(sweep % 2) and n != level]
            near = {name: [x[n] for n in neighbours[name] if levels[n] in side] or [x[name]] for name in rows[level]}
            rows[level].sort(key=lambda name: (sum(near[name]) / len(near[name]), name))
        crossings = count_crossings(links, positions(rows), levels)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return best, ways


def positions(rows: list[list[str]]) -> dict[str, float]:
    """The middle of every place, in pixels from the left."""
    found = {}
    for row in rows:
        widths = [PASSAGE if "@" in name else BOX_WIDTH for name in row]
        gap = (WIDTH - sum(widths)) / (len(row) + 1)
        left = gap
        for name, width in zip(row, widths, strict=True):
            found[name] = left + width / 2
            left += width + gap
    return found


def count_crossings(links: list[tuple[str, str]], x: dict[str, float], levels: dict[str, int]) -> int:
    pairs = itertools.combinations(links, 2)
    return sum(levels[a] == levels[c] and (x[a] - x[c]) * (x[b] - x[d]) < 0 for (a, b), (c, d) in pairs)


def draw(uses: dict[str, set[str]]) -> str:
    """The picture as SVG text."""
    floor = floors(uses)
    rows, ways = place(direct(uses), floor)
    height = MARGIN * 2 + (len(rows) - 1) * ROW_HEIGHT + BOX_HEIGHT
    x = positions(rows)
    y = {name: MARGIN + (len(rows) - 1 - level) * ROW_HEIGHT for level, row in enumerate(rows) for name in row}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#7a8794"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for way in ways:
        path = f"M{x[way[0]]:.0f},{y[way[0]] + BOX_HEIGHT}"
        for upper, lower in itertools.pairwise(way):
            start, end = y[upper] + BOX_HEIGHT, y[lower] - 2 * (lower == way[-1])
            path += f" C{x[upper]:.0f},{start + 30} {x[lower]:.0f},{end - 30} {x[lower]:.0f},{end}"
            path += f" V{y[lower] + BOX_HEIGHT}" if lower != way[-1] else ""
        parts.append(f'<path d="{path}" fill="none" stroke="#7a8794" stroke-width="1.4" marker-end="url(#tip)"/>')
    for room in sorted(uses):
        parts.append(
            f'<rect x="{x[room] - BOX_WIDTH / 2:.0f}" y="{y[room]}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" '
            f'fill="#eef3f8" stroke="#35526e"/>'
            f'<text x="{x[room]:.0f}" y="{y[room] + 20}" text-anchor="middle" font-size="16" font-weight="bold" '
            f'fill="#1c2f42">{room}/</text>'
            f'<text x="{x[room]:.0f}" y="{y[room] + 38}" text-anchor="middle" font-size="13" fill="#44576a">'
            f"{SUBJECTS[room]}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PACKAGE.parents[1] / "docs" / "images" / "rooms.svg")
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(draw(find_uses()), encoding="utf-8")


if __name__ == "__main__":
    main()
