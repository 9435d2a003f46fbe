"""Figures of videos against scikit-image, SciPy and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import laplace
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from worldsmith.evaluation.pixel_measures import diversity, luma, psnr, sharpness, ssim


def noise(seed: int, height: int = 32, width: int = 48) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, 4, height, width), generator=stream, dtype=torch.uint8)


def near(video: Tensor) -> Tensor:
    return (video.float() * 0.8 + 20 + noise(9, *video.shape[2:]).float() * 0.1).to(torch.uint8)


def test_psnr_is_that_of_scikit_image() -> None:
    video, real = noise(0), near(noise(0))
    assert psnr(video, real) == pytest.approx(peak_signal_noise_ratio(real.numpy(), video.numpy()), abs=1e-6)
    assert psnr(video, video) is None


def test_ssim_is_that_of_scikit_image() -> None:
    video, real = noise(0), near(noise(0))
    judged = [
        structural_similarity(
            a.astype(float), b.astype(float), data_range=255, gaussian_weights=True, sigma=1.5,
            use_sample_covariance=False,
        )
        for a, b in zip(luma(video).numpy(), luma(real).numpy())
    ]  # fmt: skip
    assert ssim(video, real) == pytest.approx(np.mean(judged), abs=1e-6)
    assert 0.5 < np.mean(judged) < 0.99
    assert ssim(video, video) == 1
    assert ssim(noise(0, 10, 48), noise(1, 10, 48)) is None


def test_sharpness_is_the_spread_of_the_laplacian_and_orders_noise_and_blur() -> None:
    video = noise(0)
    judged = [laplace(frame.astype(float))[1:-1, 1:-1].var() for frame in luma(video).numpy()]
    assert sharpness(video) == pytest.approx(np.mean(judged), rel=1e-5)
    blurred = torch.nn.functional.avg_pool2d(video.float(), 3, 1, 1).to(torch.uint8)
    assert sharpness(torch.full_like(video, 7)) == 0 < sharpness(blurred) < sharpness(video)


def test_diversity_is_zero_for_equal_videos_and_large_for_noise() -> None:
    assert diversity([noise(0)] * 3) == 0
    assert diversity([noise(0), near(noise(0))]) == 1 - (ssim(noise(0), near(noise(0))) or 0)
    assert (diversity([noise(0), noise(1), noise(2)]) or 0) > 0.9
    assert diversity([noise(0)]) is None
