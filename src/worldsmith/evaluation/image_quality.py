"""Image quality and diversity of videos, uint8 [3, T, H, W]: PSNR, SSIM and sharpness, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import conv2d

SIGMA, REACH = 1.5, 5
"""SSIM's window, in pixels: a Gaussian, cut after REACH on each side."""
WEIGHTS = (0.299, 0.587, 0.114)
"""Of red, green and blue in the brightness of a pixel (ITU-R BT.601)."""


def luma(video: Tensor) -> Tensor:
    """Brightness 0..255, float32 [T, H, W]."""
    return torch.einsum("cthw,c->thw", video.float(), torch.tensor(WEIGHTS, device=video.device))


def psnr(video: Tensor, real: Tensor) -> float | None:
    """Peak signal-to-noise ratio in dB over all pixels and frames; None for equal videos, where it has no bound."""
    squares = [(a.double() - b.double()).square().mean() for a, b in zip(video.unbind(1), real.unbind(1), strict=True)]
    error = torch.stack(squares).mean()
    return float(10 * torch.log10(255**2 / error)) if error > 0 else None


def ssim(video: Tensor, real: Tensor) -> float | None:
    """Structural similarity of the brightness, 1 for equal videos, mean over frames (Wang et al. 2004).

    Their Gaussian window and constants, where the window lies within the frame. None for frames that are smaller.
    """
    if min(video.shape[-2:]) <= 2 * REACH:
        return None
    a, b = luma(video), luma(real)
    return float(torch.stack([frame_ssim(x.double(), y.double()) for x, y in zip(a, b, strict=True)]).mean())


def frame_ssim(a: Tensor, b: Tensor) -> Tensor:
    """Of two pictures, 0..255, float64 [H, W]."""
    stable, stable_spread = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    mean_a, mean_b, square_a, square_b, product = blur(torch.stack([a, b, a * a, b * b, a * b]))
    spread_a, spread_b, shared = square_a - mean_a**2, square_b - mean_b**2, product - mean_a * mean_b
    above = (2 * mean_a * mean_b + stable) * (2 * shared + stable_spread)
    return (above / ((mean_a**2 + mean_b**2 + stable) * (spread_a + spread_b + stable_spread))).mean()


def blur(pictures: Tensor) -> Tensor:
    """Weighted means [N, H - 2·REACH, W - 2·REACH] over SSIM's window."""
    places = torch.arange(-REACH, REACH + 1, dtype=pictures.dtype, device=pictures.device)
    window = torch.exp(-0.5 * (places / SIGMA) ** 2)
    window = window / window.sum()
    return conv2d(conv2d(pictures[:, None], window.view(1, 1, -1, 1)), window.view(1, 1, 1, -1))[:, 0]


def sharpness(video: Tensor) -> float:
    """Variance of the brightness's Laplacian, mean over frames (Pech-Pacheco et al. 2000, LAP4: 4 neighbours)."""
    frames = luma(video)
    inner = frames[:, 1:-1, 1:-1]
    laplacian = frames[:, :-2, 1:-1] + frames[:, 2:, 1:-1] + frames[:, 1:-1, :-2] + frames[:, 1:-1, 2:] - 4 * inner
    return float(laplacian.double().var(dim=(1, 2), unbiased=False).mean())


def diversity(videos: Sequence[Tensor]) -> float | None:
    """1 minus the mean similarity of all pairs, 0 for equal videos (Odena et al. 2017, with SSIM of one scale)."""
    pairs = [ssim(a, b) for a, b in combinations(videos, 2)]
    known = [similarity for similarity in pairs if similarity is not None]
    return 1 - sum(known) / len(known) if known else None
