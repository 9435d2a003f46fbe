"""Makes the README's picture of the reasoner from what `make demo-reasoner` leaves: clips, and what the model says.

python scripts/make_reasoner_picture.py [--run FOLDER] [--dataset FOLDER] [--out docs/images/demo_reasoner.png]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import av
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).parents[1]
RUN = ROOT / "outputs/train/worldsmith/demo/falling_objects"
DATASET = ROOT / "examples/data/falling_objects"
SIDE, FRAMES, WIDTH, LINE, GAP = 64, 8, 840, 15, 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=RUN)
    parser.add_argument("--dataset", type=Path, default=DATASET)
    parser.add_argument("--clips", type=int, nargs="+", help="numbers of held-out clips; default: one of each score")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/demo_reasoner.png")
    args = parser.parse_args()
    said = json.loads((args.run / "evaluation/answers.json").read_text())
    numbers = args.clips or [first_with(said["scores"], score) for score in "54321"]
    sheet = Image.new("RGB", (WIDTH, len(numbers) * (SIDE + GAP) + GAP), "white")
    for row, number in enumerate(numbers):
        draw(sheet, GAP + row * (SIDE + GAP), args.dataset / "videophy2_val", number, said)
    sheet.save(args.out, optimize=True)
    print(f"{args.out}: {sheet.width}x{sheet.height}, {args.out.stat().st_size / 1000:.0f} kB")


def first_with(scores: list[dict[str, str]], score: str) -> int:
    """The number, from 1 on, of the first clip whose true score this is."""
    return next(number for number, entry in enumerate(scores, start=1) if entry["truth"] == score)


def draw(sheet: Image.Image, top: int, folder: Path, number: int, said: dict[str, list[dict[str, str]]]) -> None:
    """One row: every second frame of a clip, and beside it the model's score and answers, wrong ones in red."""
    with av.open(str(folder / f"media/video_{number:04d}.mp4")) as video:
        frames = [frame.to_image() for frame in video.decode(video=0)][:: 16 // FRAMES]
    for place, frame in enumerate(frames):
        sheet.paste(frame.resize((SIDE, SIDE)), (GAP + place * (SIDE + 2), top))
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=11)
    left = GAP + FRAMES * (SIDE + 2) + GAP
    score = said["scores"][number - 1]
    lines = [(f"plausibility {score['answer']} of 5 (true: {score['truth']})", score)]
    for entry in said["questions"]:
        if entry["id"].startswith(f"video_{number:04d}-") and not entry["id"].endswith(("left", "red")):
            lines.append((f"{entry['asked'].removesuffix(' Answer yes or no.')} {entry['answer']}", entry))
    for line, (text, entry) in enumerate(lines):
        right = entry["answer"].strip().lower() == entry["truth"]
        pen.text((left, top - 4 + line * LINE), text, fill="black" if right else "red", font=font)


if __name__ == "__main__":
    main()
