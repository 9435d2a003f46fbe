"""Samples per second of the loader on one core, against plain PyAV that decodes the same frames to the same size.

    python benchmarks/loader.py [DATASET_FOLDER] [--resolution 256] [--rounds 5] [--quick]

Each way goes once over all clips in a turn, in this process with one thread; the ways take turns. What counts is
processor time, so that other work on the machine does not. Plain PyAV opens a clip, decodes it from its start,
converts the wanted frames with libswscale as training does, and cuts them; the pixels must be equal. The loader adds
what a run needs: looking at the file, captions, draws, packing, checks; "from a tar" is the same clips as one shard,
and "cached" is the loader that reads latents (48 channels) in place of the clips. Without a folder 8 clips are made,
93 frames of 480 x 320 with moving discs and grain; --quick: 2 of 9 frames.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import torch

from worldsmith.data.clips.clip_frames import SCALING, cover_and_crop
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.clips.video_sample import VideoSample
from worldsmith.data.latent_cache import LatentCache
from worldsmith.data.video_writer import write_video

LATENT_CHANNELS = 48


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", type=Path, help="folder of a data set; left out: clips are made")
    parser.add_argument("--resolution", default="256")
    parser.add_argument("--rounds", type=int, default=5, help="turns that are timed")
    parser.add_argument("--quick", action="store_true", help="2 clips of 9 frames, 1 turn: checks the program only")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "indexes")
        dataset = arguments.dataset or make_clips(folder / "clips", *((2, 9) if arguments.quick else (8, 93)))
        loader = build(dataset, arguments.resolution)
        samples = {sample.key: sample for sample in loader.first_samples()}
        tar = build(make_shard(loader, folder / "clips.tar"), arguments.resolution)
        cached = build(dataset, arguments.resolution, folder / "latents")
        for sample in cached.first_samples():
            cached.maker.latent_cache.put(sample.cache_key, torch.randn(LATENT_CHANNELS, *sample.latent_shape))

        plain = {key: decode(loader, sample) for key, sample in samples.items()}
        same = all(np.array_equal(plain[key], sample.video.numpy()) for key, sample in samples.items())
        ways: dict[str, Callable[[], object]] = {
            "plain PyAV": lambda: [decode(loader, sample) for sample in samples.values()],
            "loader": lambda: list(loader.first_pass()),
            "from a tar": lambda: list(tar.first_pass()),
            "cached": lambda: list(cached.first_pass()),
        }
        seconds = processor_seconds(ways, rounds)
    frames = sum(sample.num_frames for sample in samples.values())
    print(f"{len(samples)} samples, {frames} frames, tier {arguments.resolution}; median of {rounds} turns")
    for way, taken in seconds.items():
        print(f"{way:<11}{len(samples) / taken:9.2f} samples/s per core, ratio {seconds['plain PyAV'] / taken:.2f}")
    print(f"pixels of the loader and of plain PyAV: {'equal' if same else 'DIFFERENT'}")
    return 0 if same else 1


def build(dataset: Path, resolution: str, latents: Path | None = None) -> VideoLoader:
    config = VideoLoader.Config(max_samples_per_batch=2, latent_cache=str(latents or ""), shuffle=False)
    config.dataset.path, config.dataset.resolution, config.dataset.min_frames = str(dataset), resolution, 5
    cache = LatentCache(latents, "benchmark") if latents else None
    return config.build(grid=LatentGrid(4, 16, 2), tokenizer=lambda text: list(text.encode()), latent_cache=cache)


def decode(loader: VideoLoader, sample: VideoSample) -> np.ndarray:
    """The frames of a sample as a short program would read them: uint8 [3, T, H, W]."""
    window = loader.maker.window(sample.position)
    height, width = sample.size
    frames = range(window.start_frame, window.start_frame + sample.num_frames * window.temporal_interval)
    wanted = frames[:: window.temporal_interval]
    video = np.empty((3, len(wanted), height, width), np.uint8)
    with av.open(window.path) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        for number, frame in enumerate(container.decode(stream)):
            if number in wanted:
                crop = cover_and_crop(frame.width, frame.height, (width, height))
                rgb = frame.reformat(crop.width, crop.height, "rgb24", interpolation=SCALING, threads=1).to_ndarray()
                rows, columns = slice(crop.top, crop.top + height), slice(crop.left, crop.left + width)
                video[:, wanted.index(number)] = rgb[rows, columns].transpose(2, 0, 1)
            if number == wanted[-1]:
                break
    return video


def processor_seconds(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median processor time of each way, after one turn that warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            start = time.process_time()
            way()
            if turn:
                times[name].append(time.process_time() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def make_clips(folder: Path, count: int, frames: int) -> Path:
    """Discs that move over a grainy ground."""
    random = np.random.RandomState(0)
    (folder / "videos").mkdir(parents=True)
    rows, columns = np.mgrid[:320, :480]
    lines = []
    for number in range(count):
        video = random.randint(90, 110, (frames, 320, 480, 3)).astype(np.uint8)
        colours, speeds = random.randint(0, 256, (4, 3)), random.uniform(-4, 4, (4, 2))
        for moment in range(frames):
            for colour, (down, right) in zip(colours, speeds):
                disc = (rows - 160 - down * moment) ** 2 + (columns - 240 - right * moment) ** 2 < 40**2
                video[moment, disc] = colour
        write_video(folder / f"videos/{number}.mp4", video, 24.0)
        window = {"start_frame": 0, "end_frame": frames - 1, "caption": f"four discs move, clip {number}"}
        lines.append({"uuid": str(number), "vision_path": f"videos/{number}.mp4", "t2w_windows": [window]})
    (folder / "video_dataset_file.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def make_shard(loader: VideoLoader, path: Path) -> Path:
    """The windows of the data set, each with its clip, as one WebDataset shard."""
    with tarfile.open(path, "w") as tar:
        for number, window in enumerate(loader.dataset.windows):
            ends = {"start_frame": window.start_frame, "end_frame": window.end_frame}
            facts = {"t2w_windows": [{**ends, "temporal_interval": window.temporal_interval, **window.captions}]}
            text = path.with_suffix(".json")
            text.write_text(json.dumps(facts), encoding="utf-8")
            tar.add(window.path, f"{number}.mp4")
            tar.add(text, f"{number}.json")
    return path


if __name__ == "__main__":
    sys.exit(main())
