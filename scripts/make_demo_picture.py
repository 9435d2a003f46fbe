"""Makes the picture of the README from the contact sheet that `make demo` leaves: its first rows, smaller.

python scripts/make_demo_picture.py [--sheet FILE] [--out docs/images/demo.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
SHEET = ROOT / "outputs/train/worldsmith/demo/moving_shapes/evaluation/contact_sheet.png"
WIDTH = 1200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sheet", type=Path, default=SHEET)
    parser.add_argument("--rows", type=float, default=0.2608, help="the share of the sheet's height that is kept")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/demo.png")
    args = parser.parse_args()
    with Image.open(args.sheet) as sheet:
        part = sheet.convert("RGB").crop((0, 0, sheet.width, round(sheet.height * args.rows)))
    small = part.resize((WIDTH, round(part.height * WIDTH / part.width)), Image.Resampling.LANCZOS)
    small.save(args.out, optimize=True)
    print(f"{args.out}: {small.width}x{small.height}, {args.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
