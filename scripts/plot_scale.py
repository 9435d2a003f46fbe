"""Draws the pictures of docs/scale.md and writes its tables, from the steps in docs/scale.json.

    python scripts/plot_scale.py

`scripts/scale_runs.py` simulates those steps. `tests/unit/planning/test_scale.py` fails when the page is another one.
"""

from __future__ import annotations

import re
from pathlib import Path

from scale_pictures import PICTURES
from scale_runs import load
from scale_tables import TABLES, Entries

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    entries = load()
    for name, picture in PICTURES.items():
        (DOCS / "images" / f"scale_{name}.svg").write_text(picture(entries), encoding="utf-8")
    page = DOCS / "scale.md"
    page.write_text(with_tables(page.read_text(encoding="utf-8"), entries), encoding="utf-8")


def with_tables(page: str, entries: Entries) -> str:
    """The page with what stands between its marks made anew."""
    for name, table in TABLES.items():
        mark = f"<!-- {name}: scripts/plot_scale.py -->"
        page, found = re.subn(f"{mark}\n.*?\n\n", f"{mark}\n{table(entries)}\n\n", page, flags=re.DOTALL)
        if found != 1:
            raise ValueError(f"docs/scale.md has the mark {mark} {found} times")
    return page


if __name__ == "__main__":
    main()
