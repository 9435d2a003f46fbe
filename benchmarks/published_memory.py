"""How far is a plan's memory from figures that others have published of their own programs?

Each run is simulated as the other program is set up: its weights, precision, clips and batch. What that program keeps
different from ours is added by calculation. The table is that of docs/planning_accuracy.md.

    python benchmarks/published_memory.py [--only NUMBER…] [--write docs/planning_accuracy.md]
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from published_reasoners import REASONERS
from published_videos import VIDEOS

FIGURES = [*VIDEOS, *REASONERS]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, nargs="*", help="places in the table, from 0")
    parser.add_argument("--write", type=Path, help="a file in whose table these rows are replaced")
    options = parser.parse_args(arguments)
    rows: dict[int, str] = {}
    for place in range(len(FIGURES)) if options.only is None else options.only:
        rows[place] = FIGURES[place].row(FIGURES[place].predict() / 1e9)
        print(rows[place], flush=True)
    if options.write:
        options.write.write_text(with_rows(options.write.read_text(), rows))


def with_rows(text: str, rows: Mapping[int, str]) -> str:
    """The text, in whose table these rows are new; the others stay."""

    def replaced(found: re.Match[str]) -> str:
        table = {**dict(enumerate(found[2].splitlines())), **rows}
        return found[1] + "".join(f"{table[place]}\n" for place in range(len(FIGURES)))

    return re.sub(r"(\|---[-|]*\n)((?:\|.*\n)+)", replaced, text, count=1)


if __name__ == "__main__":
    main()
