"""Images to patches against transformers' PIL processor, patches equal to the last bit; and how full packs are.

JPEG files of several sizes, with the limits of the published Qwen3-VL models. Both sides read the files, scale, cut
into patches and normalise, and take turns. Videos have no judge without torchvision. The lengths that are packed are
log-normal, like those of chats with images: half of them below 690 tokens, one in fifty above 5000.

    python benchmarks/chat_data.py [--images 24] [--rounds 5] [--samples 5000] [--quick]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from side_by_side import medians
from torch import Tensor
from transformers.image_utils import load_image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from worldsmith.data.conversations.media.media_processor import MediaProcessor
from worldsmith.data.stream.packing import PoolPacker, SequentialPacker

SIDES = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
LIMITS = {**SIDES, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
IMAGES = {**LIMITS, "size": {"shortest_edge": 65536, "longest_edge": 16777216}}
VIDEOS = {**LIMITS, "size": {"shortest_edge": 4096, "longest_edge": 25165824}}
SIZES = ((640, 480), (1024, 768), (500, 375), (1280, 720))


def make_images(folder: Path, count: int) -> list[str]:
    """JPEG files with the smooth areas and edges of photographs."""
    draw = np.random.default_rng(0)
    files = []
    for number in range(count):
        small = draw.integers(0, 256, (12, 16, 3), np.uint8)
        Image.fromarray(small).resize(SIZES[number % len(SIZES)], Image.Resampling.BICUBIC).save(
            folder / f"{number}.jpg"
        )
        files.append(str(folder / f"{number}.jpg"))
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGES))
    (folder / "video_preprocessor_config.json").write_text(json.dumps(VIDEOS))
    return files


def ways(folder: Path, files: list[str]) -> dict[str, Callable[[], list[Tensor]]]:
    media = MediaProcessor.Config().build(folder=folder)
    judge = Qwen2VLImageProcessorPil(**IMAGES)

    def ours() -> list[Tensor]:
        patches = [torch.from_numpy(media.read(media.plan_image(file))) for file in files]
        return [media.normalize(rows, "image") for rows in patches]

    def theirs() -> list[Tensor]:
        return [judge(load_image(file), return_tensors="pt")["pixel_values"] for file in files]

    return {"worldsmith": ours, "transformers": theirs}


def fill(packer: Any, lengths: list[int], cap: int) -> float:
    """Share of the packs' room that is used; the last packs, which have no more to choose from, are left out."""
    source = iter(lengths)
    packs = list(iter(lambda: packer.pack(source), []))[:-3]
    return sum(map(sum, packs)) / (cap * len(packs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5, help="turns that are timed")
    parser.add_argument("--samples", type=int, default=5000, help="samples that are packed")
    parser.add_argument("--quick", action="store_true", help="2 images and one turn: checks the program only")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.images, arguments.rounds, arguments.samples = 2, 1, 500
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        both = ways(Path(name), make_images(Path(name), arguments.images))
        equal = all(map(torch.equal, both["worldsmith"](), both["transformers"]()))
        seconds = medians(both, rounds=arguments.rounds)
    for way, taken in seconds.items():
        print(f"{way:>12}: {arguments.images / taken:6.1f} images/s (median of {arguments.rounds})")
    print(f"ratio {seconds['transformers'] / seconds['worldsmith']:.2f}")
    print(f"patches: {'equal to the last bit' if equal else 'DIFFERENT'}")

    draw = random.Random(0)
    full = []
    for cap in (4096, 16000):
        lengths = [min(cap // 2, int(draw.lognormvariate(6.5, 1.0)) + 20) for _ in range(arguments.samples)]
        caps: dict[str, Any] = {"max_sequence_length": cap, "max_samples_per_batch": None, "lookahead": 32}
        packers = (kind(lambda length: length, **caps) for kind in (SequentialPacker, PoolPacker))
        in_order, pool = (fill(packer, lengths, cap) for packer in packers)
        full.append(pool)
        print(f"packs of {cap} tokens: {100 * in_order:.2f} % full in order, {100 * pool:.2f} % from a pool of 32")
    return 0 if equal and min(full) >= 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
