"""Takes the pictures of docs/run_page.md: the head of a run's page and its samples, in a browser without a window.

python scripts/make_page_picture.py [--run FOLDER] [--out docs/images]
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
PICTURES = {
    "run_page.png": ("", (1280, 1060)),
    "run_page_samples.png": ("nav, section:not(#samples) { display: none }", (1280, 660)),
}
"""What is done to the page for each, and the size of the window."""
WIDTH = 840
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=RUN)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images")
    args = parser.parse_args()
    page = write_page(args.run).resolve()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("there is no Chromium on this machine")
    for name, (style, size) in PICTURES.items():
        file = args.out / name
        copy = page.with_name("picture.html")  # beside the videos
        copy.write_text(f"{page.read_text()}<style>{style}</style>")
        with tempfile.TemporaryDirectory() as folder:
            taken = Path(folder, "page.png")
            window = f"--window-size={size[0]},{size[1]}"
            words = [*OPTIONS, window, f"--user-data-dir={folder}", f"--screenshot={taken}", copy.as_uri()]
            subprocess.run([program, *words], check=True, stderr=subprocess.DEVNULL)
            with Image.open(taken) as shot:
                small = shot.convert("RGB").resize((WIDTH, size[1] * WIDTH // size[0]), Image.Resampling.LANCZOS)
        copy.unlink()
        small.save(file, optimize=True)
        print(f"{file}: {small.width}x{small.height}, {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
