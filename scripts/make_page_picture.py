"""Takes the pictures of docs/run_page.md: a run's page, its samples, and a comparison, in a browser without a window.

python scripts/make_page_picture.py [--run FOLDER] [--compare FOLDER FOLDER] [--out docs/images]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from worldsmith.monitor.page.run_page import write_page
from worldsmith.tools.reports.report import write_comparison

ROOT = Path(__file__).parents[1]
RUN = ROOT / "outputs/train/worldsmith/demo/moving_shapes"
PICTURES = {
    "run_page.png": ("#samples, #evaluation { display: none }", (1280, 1080)),
    "run_page_samples.png": (
        "nav, section:not(#samples), .prompt:nth-of-type(n + 3), video::-webkit-media-controls { display: none }",
        (1280, 730),
    ),
}
"""The style that is added to a run's page for each picture, and the size of the window."""
COMPARISON = ("run_page_comparison.png", "#samples, #evaluation { display: none }", (1280, 1420))
"""The picture of a comparison, taken only if its runs are given."""
WIDTH = 840
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=RUN)
    parser.add_argument("--compare", type=Path, nargs=2, metavar="FOLDER", help="runs for the picture of a comparison")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images")
    args = parser.parse_args()
    page = write_page(args.run).resolve()
    for name, (style, size) in PICTURES.items():
        take_picture(page, style, size, args.out / name)
    if args.compare:
        name, style, size = COMPARISON
        page = write_comparison(args.compare, args.compare[0] / "comparison.html").resolve()
        take_picture(page, style, size, args.out / name)
        page.unlink()


def take_picture(page: Path, style: str, size: tuple[int, int], file: Path) -> None:
    """Writes a scaled picture of the top of the page."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("there is no Chromium on this machine")
    copy = page.with_name("picture.html")  # in the folder of the videos
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
