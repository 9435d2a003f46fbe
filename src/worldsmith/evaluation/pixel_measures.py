"""Pixel metrics of videos, uint8 [3, T, H, W], without a network: PSNR, SSIM, sharpness, diversity and motion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d

SIGMA, WINDOW_REACH = 1.5, 5
"""Gaussian window of SSIM: standard deviation and half width, in pixels."""
WEIGHTS = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the luma of a pixel (ITU-R BT.601)."""
BLOCK, REACH, LARGEST = 8, 8, 256
"""Block matching, in pixels: block size, search range, and half the limit of the short side: larger frames are
downscaled by an integer factor until their short side is below 2·LARGEST."""
NOTICED = 0.5
"""A block counts as moving if its best match beats zero motion by this many gray levels; less is compression noise."""


def luma(video: Tensor) -> Tensor:
    """Returns the luma (0 to 255, float32 [T, H, W]) of an RGB video, uint8 [3, T, H, W]."""
    return torch.einsum("cthw,c->thw", video.float(), torch.tensor(WEIGHTS, device=video.device))


def psnr(video: Tensor, real: Tensor) -> float | None:
    """Computes the PSNR of two uint8 videos [3, T, H, W] in dB; None (infinite) if the videos are equal."""
    squares = [(a.double() - b.double()).square().mean() for a, b in zip(video.unbind(1), real.unbind(1), strict=True)]
    error = torch.stack(squares).mean()
    return float(10 * torch.log10(255**2 / error)) if error > 0 else None


def ssim(video: Tensor, real: Tensor) -> float | None:
    """Computes the SSIM of the luma of two uint8 videos [3, T, H, W], as mean over frames; 1 for equal videos.

    Uses the Gaussian window and the constants of Wang et al. 2004, without padding. None if the frames are smaller than
    the window.
    """
    if min(video.shape[-2:]) <= 2 * WINDOW_REACH:
        return None
    a, b = luma(video), luma(real)
    return float(torch.stack([frame_ssim(x.double(), y.double()) for x, y in zip(a, b, strict=True)]).mean())


def frame_ssim(a: Tensor, b: Tensor) -> Tensor:
    """Computes the mean SSIM (a scalar) of two images with values from 0 to 255, float64 [H, W]."""
    stable, stable_spread = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    mean_a, mean_b, square_a, square_b, product = blur(torch.stack([a, b, a * a, b * b, a * b]))
    spread_a, spread_b, shared = square_a - mean_a**2, square_b - mean_b**2, product - mean_a * mean_b
    above = (2 * mean_a * mean_b + stable) * (2 * shared + stable_spread)
    return (above / ((mean_a**2 + mean_b**2 + stable) * (spread_a + spread_b + stable_spread))).mean()


def blur(images: Tensor) -> Tensor:
    """Blurs images [N, H, W] with SSIM's Gaussian window: [N, H - 2·WINDOW_REACH, W - 2·WINDOW_REACH]."""
    places = torch.arange(-WINDOW_REACH, WINDOW_REACH + 1, dtype=images.dtype, device=images.device)
    window = torch.exp(-0.5 * (places / SIGMA) ** 2)
    window = window / window.sum()
    return conv2d(conv2d(images[:, None], window.view(1, 1, -1, 1)), window.view(1, 1, 1, -1))[:, 0]


def sharpness(video: Tensor) -> float:
    """Computes the variance of the Laplacian of the luma of a uint8 video [3, T, H, W], as mean over frames.

    Source:
        Pech-Pacheco et al. 2000, LAP4.
    """
    frames = luma(video)
    inner = frames[:, 1:-1, 1:-1]
    laplacian = frames[:, :-2, 1:-1] + frames[:, 2:, 1:-1] + frames[:, 1:-1, :-2] + frames[:, 1:-1, 2:] - 4 * inner
    return float(laplacian.double().var(dim=(1, 2), unbiased=False).mean())


def diversity(videos: Sequence[Tensor]) -> float | None:
    """Computes the diversity of uint8 videos [3, T, H, W] of one size: 1 minus the mean SSIM of all pairs.

    0 for equal videos; None if the frames are too small for SSIM.

    Source:
        Odena et al. 2017, with single-scale SSIM.
    """
    pairs = [ssim(a, b) for a, b in combinations(videos, 2)]
    known = [similarity for similarity in pairs if similarity is not None]
    return 1 - sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class Motion:
    """Motion vector of each block of a video from a frame to the next one, and difference of the matched blocks."""

    vectors: Tensor
    """Motion vectors (down, right) in pixels per frame, float32 [T - 1, rows, columns, 2]."""
    residual: Tensor
    """Mean absolute difference of a block and its match, in gray levels 0..255, float32 [T - 1, rows, columns]."""

    @property
    def magnitude(self) -> float:
        """Mean length of the motion vectors in pixels per frame."""
        return float(self.vectors.norm(dim=-1).mean())

    @property
    def flicker(self) -> float:
        """Mean difference, in gray levels, that the block motion does not explain (warping error, Lai et al. 2018)."""
        return float(self.residual.mean())

    def error(self, real: Motion) -> float:
        """Returns the mean endpoint error (Baker et al. 2011) against the motion of a real video, in pixels/frame."""
        return float((self.vectors - real.vectors).norm(dim=-1).mean())


def measure_motion(video: Tensor) -> Motion | None:
    """Computes block motion by full-search block matching of the luma; with equal matches the shortest vector wins.

    Only blocks whose search range lies within the frame are used; vectors are whole pixels. Frames of 512 px and more
    are first downscaled by an integer factor.

    Args:
        video: uint8 [3, T, H, W].

    Returns:
        The motion; None for a single frame, and for frames that are too small.

    Source:
        Jain and Jain 1981.
    """
    frames = luma(video)
    factor = max(1, min(frames.shape[1:]) // LARGEST)
    frames = avg_pool2d(frames[:, None], factor)[:, 0]
    reach = min(REACH, min(frames.shape[1:]) // 4)
    rows, columns = ((side - 2 * reach) // BLOCK for side in frames.shape[1:])
    if len(frames) < 2 or reach < 1 or rows < 1 or columns < 1:
        return None
    height, width = rows * BLOCK, columns * BLOCK
    now = frames[1:, reach : reach + height, reach : reach + width]
    steps = sorted(product(range(-reach, reach + 1), repeat=2), key=lambda step: (step[0] ** 2 + step[1] ** 2, step))
    for number, (down, right) in enumerate(steps):
        top, left = reach - down, reach - right
        before = frames[:-1, top : top + height, left : left + width]
        cost = avg_pool2d((now - before).abs()[:, None], BLOCK)[:, 0]
        if number == 0:
            still, best, chosen = cost, cost, torch.zeros_like(cost, dtype=torch.long)
        chosen = torch.where(cost < best, number, chosen)
        best = torch.minimum(cost, best)
    moves = still - best > NOTICED
    chosen = torch.where(moves, chosen, 0)
    vectors = torch.tensor(steps, dtype=torch.float32, device=frames.device)[chosen] * factor
    return Motion(vectors, torch.where(moves, best, still))
