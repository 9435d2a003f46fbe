"""How well a video VAE reconstructs real clips: PSNR of every clip, beside a block cosine transform of the same size.

    python benchmarks/vae_real_clips.py DIR [--vae tiny_vae_natural] [--frames 17]
        [--precision bfloat16] [--sheet OUT.png]

DIR is a dataset folder: every `*/video_dataset_file.jsonl` below it is read, and the first frames of every record's
first window, at resolution tier 256. The transform keeps the 48 coefficients of 4x16x16 blocks (1x16x16 in the first
frame) that carry most over all these clips. `--sheet` writes originals above reconstructions.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from worldsmith.assets import asset_path
from worldsmith.data.clips.clip_frames import Framing, read_frames
from worldsmith.data.clips.resolution import target_size
from worldsmith.data.video_decoder import examine
from worldsmith.models.video_vae.wan import WanVAE

KEPT, SIDE = 48, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path)
    parser.add_argument("--vae", default="tiny_vae_natural", help="a shipped asset's name, or a path")
    parser.add_argument("--frames", type=int, default=17)
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--sheet", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)

    folder = Path(args.vae) if Path(args.vae).exists() else asset_path(args.vae)
    vae = WanVAE.Config(vae_path=str(folder), precision=args.precision).build()
    clips = read_clips(args.clips, args.frames)
    transforms = cosine_transforms(list(clips.values()))
    rows, pictures = [], []
    for name, clip in clips.items():
        start = time.monotonic()
        output = vae.decode(vae.encode(torch.from_numpy(clip))).numpy()
        seconds = time.monotonic() - start
        rows.append((psnr(clip, output), psnr(clip, transformed(clip, transforms))))
        print(f"{name:12} {rows[-1][0]:6.2f} dB   cosine transform {rows[-1][1]:6.2f} dB   {seconds:.1f} s", flush=True)
        pictures.append([np.concatenate([v[:, i] for v in (clip, output)], 1) for i in (1, args.frames - 2)])
    (mean, reference), worst = np.mean(rows, 0), np.min(rows, 0)
    print(f"{'mean':12} {mean:6.2f} dB   cosine transform {reference:6.2f} dB")
    print(f"{'worst':12} {worst[0]:6.2f} dB   cosine transform {worst[1]:6.2f} dB")
    if args.sheet:
        height = max(p.shape[1] for row in pictures for p in row)
        columns = [np.pad(p, ((0, 0), (0, height - p.shape[1]), (0, 0))) for row in pictures for p in row]
        lines = [np.concatenate(columns[i : i + 4], 2) for i in range(0, len(columns) // 4 * 4, 4)]
        Image.fromarray(np.concatenate(lines, 1).transpose(1, 2, 0)).save(args.sheet)


def read_clips(folder: Path, frames: int) -> dict[str, np.ndarray]:
    """uint8 [3, frames, H, W] by the name of the record."""
    clips = {}
    for listing in sorted(folder.rglob("video_dataset_file.jsonl")):
        for line in listing.read_text().splitlines():
            record = json.loads(line)
            path, window = listing.parent / record["vision_path"], record["t2w_windows"][0]
            _, info = examine(str(path))
            framing = Framing(target_size("256", info.width, info.height), "training")
            first, interval = window["start_frame"], window["temporal_interval"]
            indices = range(first, first + frames * interval, interval)
            clips[record["uuid"]] = read_frames(str(path), info, indices, framing)
    return clips


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return 10 * math.log10(255**2 / np.mean((a.astype(np.float64) - b) ** 2))


def cosine(size: int) -> np.ndarray:
    """The orthonormal cosine transform [coefficient, sample]."""
    k, x = np.arange(size)[:, None], np.arange(size)[None, :]
    rows = np.cos(np.pi * (x + 0.5) * k / size) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows


# Brightness and two opponent colours, orthonormal.
COLOURS = np.linalg.qr(np.array([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]]).T)[0].T


def blocks(clip: np.ndarray, frames: int) -> np.ndarray:
    c, t, h, w = clip.shape
    cut = clip.reshape(c, t // frames, frames, h // SIDE, SIDE, w // SIDE, SIDE)
    return cut.transpose(1, 3, 5, 0, 2, 4, 6).reshape(-1, c * frames * SIDE * SIDE).astype(np.float64)


def cosine_transforms(clips: list[np.ndarray]) -> list[np.ndarray]:
    """For the first frame and for groups of 4: the kept rows, those with most energy over all clips."""
    kept = []
    for part, frames in ((slice(0, 1), 1), (slice(1, None), 4)):
        rows = np.kron(np.kron(COLOURS, cosine(frames)), np.kron(cosine(SIDE), cosine(SIDE)))
        energy = np.mean([np.mean((blocks(clip[:, part], frames) @ rows.T) ** 2, axis=0) for clip in clips], axis=0)
        kept.append(rows[np.argsort(-energy)[:KEPT]])
    return kept


def transformed(clip: np.ndarray, transforms: list[np.ndarray]) -> np.ndarray:
    parts = []
    for part, frames, rows in ((slice(0, 1), 1, transforms[0]), (slice(1, None), 4, transforms[1])):
        c, t, h, w = clip[:, part].shape
        back = (blocks(clip[:, part], frames) @ rows.T) @ rows
        cut = back.reshape(t // frames, h // SIDE, w // SIDE, c, frames, SIDE, SIDE)
        parts.append(cut.transpose(3, 0, 4, 1, 5, 2, 6).reshape(c, t, h, w))
    return np.clip(np.rint(np.concatenate(parts, 1)), 0, 255)


if __name__ == "__main__":
    main()
