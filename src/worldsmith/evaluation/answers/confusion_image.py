"""Writes a confusion matrix as an image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldsmith.files.atomic import replacing

CELL, GAP, LETTER = (96, 56), 12, 15
"""Pixels: size of a cell (width, height), margin around the table, font height."""
FULL, PAPER, INK, LIGHT, RULE = (31, 79, 140), (255, 255, 255), (30, 30, 30), (255, 255, 255), (205, 205, 205)
UNREAD = "unparsed"


def draw_confusion(path: Path, confusion: Mapping[str, Any]) -> None:
    """Writes an image of a confusion matrix; the shade of a cell is its fraction of the row.

    Args:
        path: PNG file to write.
        confusion: The keys `labels` and `rows`. Each row has the counts of one true label: one count per predicted
            label, then the number of unparsed answers.
    """
    from PIL import Image, ImageDraw, ImageFont

    labels, rows = confusion["labels"], confusion["rows"]
    font = ImageFont.load_default(size=LETTER)
    columns = [*labels, UNREAD]
    width = max([CELL[0], *(int(font.getlength(name)) + 2 * GAP for name in columns)])
    left = max(int(font.getlength(name)) for name in [*labels, "true \\ predicted"]) + 3 * GAP
    top = CELL[1]
    size = (left + width * len(columns) + GAP, top + CELL[1] * len(labels) + GAP)
    picture = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(picture)

    def write(text: str, x: float, y: float, colour: tuple[int, int, int]) -> None:
        draw.text((x, y), text, fill=colour, font=font, anchor="mm")

    write("true \\ predicted", left / 2, top / 2, INK)
    for column, name in enumerate(columns):
        write(name, left + width * (column + 0.5), top / 2, INK)
    for line, (name, counts) in enumerate(zip(labels, rows)):
        middle = top + CELL[1] * (line + 0.5)
        write(name, left / 2, middle, INK)
        for column, count in enumerate(counts):
            share = count / sum(counts) if sum(counts) else 0.0
            shade = tuple(round(paper + share * (full - paper)) for paper, full in zip(PAPER, FULL))
            x, y = left + width * column, top + CELL[1] * line
            draw.rectangle((x, y, x + width, y + CELL[1]), fill=shade, outline=RULE)
            write(f"{count}", x + width / 2, middle, LIGHT if share > 0.5 else INK)
    with replacing(path) as aside:
        picture.save(aside, format="PNG")
