"""Is encoding a clip in long windows faster than diffusers' loop over 4 frames, and are the latents the same?

61 frames at tier 256 (320 × 192, window 68) through the shipped tiny VAE, float32. The two sides take turns.

    python benchmarks/vae_windows.py [--vae FOLDER] [--frames 61] [--size 320x192] [--rounds 3] [--threads 1] [--quick]
"""

from __future__ import annotations

import argparse
import sys

import torch
from side_by_side import medians
from torch import Tensor

from worldsmith.assets import asset_path
from worldsmith.models.video_vae.wan import WanVAE

TOLERANCE = 1e-5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vae", default=str(asset_path("tiny_vae")), help="a folder or file as for vae_path")
    parser.add_argument("--frames", type=int, default=61, help="4k + 1")
    parser.add_argument("--size", default="320x192", help="width x height in pixels")
    parser.add_argument("--rounds", type=int, default=3, help="turns that are timed")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--quick", action="store_true", help="9 frames of 64x64 and one turn: checks the program only")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.frames, arguments.size, arguments.rounds = 9, "64x64", 1
    torch.set_num_threads(arguments.threads)
    vae = WanVAE.Config(vae_path=arguments.vae, precision="float32").build()
    width, height = map(int, arguments.size.split("x"))
    generator = torch.Generator().manual_seed(0)
    video = torch.randint(0, 256, (3, arguments.frames, height, width), generator=generator, dtype=torch.uint8)

    def in_windows() -> Tensor:
        return vae.encode(video)

    def four_frames() -> Tensor:
        pixels = video.float().div(127.5).sub(1.0)[None]
        with torch.no_grad():
            return ((vae.model.encode(pixels).latent_dist.mode() - vae.mean) * vae.inverse_std)[0]

    expected = four_frames()
    difference = ((in_windows() - expected).abs().max() / expected.abs().max()).item()
    seconds = medians({"windows": in_windows, "4 frames": four_frames}, rounds=arguments.rounds)
    window = vae.window(height, width)
    print(f"{arguments.frames} frames of {arguments.size}, windows of {window} frames, {arguments.threads} threads")
    for name, taken in seconds.items():
        print(f"{name:>8}: {taken:6.2f} s (median of {arguments.rounds})")
    print(f"ratio {seconds['4 frames'] / seconds['windows']:.2f}")
    print(f"largest difference of a latent, relative to the largest latent: {difference:.1e}")
    return 0 if difference <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
