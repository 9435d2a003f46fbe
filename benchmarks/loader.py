"""Samples per second with and without cached latents, side by side in one run.

    python benchmarks/loader.py DATASET_FOLDER [--resolution 256] [--workers 0] [--seconds 10]

What is measured is the loader alone: reading, decoding, scaling, captions, packing. The cached side reads latents of
the right shape in place of the clips. What the encoder costs on top, once per clip, is not in the ratio.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import islice
from pathlib import Path

import torch

from worldsmith.data.clips.latent_cache import LatentCache
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_loader import VideoLoader

LATENT_CHANNELS = 48


def build(arguments: argparse.Namespace, folder: str = "") -> VideoLoader:
    config = VideoLoader.Config(
        max_samples_per_batch=2, num_workers=arguments.workers, latent_cache=folder, shuffle=False
    )
    config.dataset.path, config.dataset.resolution = str(arguments.dataset), arguments.resolution
    config.dataset.min_frames = 5
    cache = LatentCache(Path(folder), "benchmark") if folder else None
    return config.build(grid=LatentGrid(4, 16, 2), tokenizer=lambda text: list(text.encode()), latent_cache=cache)


def samples_per_second(loader: VideoLoader, seconds: float) -> float:
    """The first pack is left out: it pays for starting workers."""
    stream = iter(loader)
    next(stream)
    start, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        count += len(next(stream))
    return count / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--resolution", default="256")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        filler = build(arguments, folder)
        for pack in islice(filler, -(-len(filler.dataset) // 2)):
            for sample in pack:
                filler.latent_cache.put(sample.cache_key, torch.randn(LATENT_CHANNELS, *sample.latent_shape))
        decoding = samples_per_second(build(arguments), arguments.seconds)
        cached = samples_per_second(build(arguments, folder), arguments.seconds)
    print(f"decoding {decoding:8.1f} samples/s")
    print(f"cached   {cached:8.1f} samples/s")
    print(f"ratio    {cached / decoding:8.1f}")


if __name__ == "__main__":
    main()
