"""Takes the picture of docs/run_page.md: the head of a run's page, in a browser without a window.

python scripts/make_page_picture.py [--run FOLDER] [--out docs/images/run_page.png]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from worldsmith.monitor.page.run_page import write_page

ROOT = Path(__file__).parents[1]
RUN = ROOT / "outputs/train/worldsmith/demo/moving_shapes"
SIZE = (1280, 1060)
WIDTH = 840
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=RUN)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/run_page.png")
    args = parser.parse_args()
    page = write_page(args.run).resolve()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("there is no Chromium on this machine")
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder, "page.png")
        size = f"--window-size={SIZE[0]},{SIZE[1]}"
        words = [program, *OPTIONS, size, f"--user-data-dir={folder}", f"--screenshot={taken}", page.as_uri()]
        subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
        with Image.open(taken) as shot:
            small = shot.convert("RGB").resize((WIDTH, SIZE[1] * WIDTH // SIZE[0]), Image.Resampling.LANCZOS)
    small.save(args.out, optimize=True)
    print(f"{args.out}: {small.width}x{small.height}, {args.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
