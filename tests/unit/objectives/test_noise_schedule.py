"""Distributions of the noise level, their shift, and the streams that they are drawn from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worldsmith.objectives.noise_schedule import ltx2, sample_noise, sample_sigma, shift_sigma, waver


@pytest.mark.parametrize(
    ("u", "time"),
    [(0.0, 1.0), (0.1, 0.80257), (0.25, 0.61642), (0.5, 0.5), (0.75, 0.38358), (0.9, 0.19743), (1.0, 0.0)],
)
def test_waver_has_its_published_values(u, time):
    assert waver(u) == pytest.approx(time, abs=5e-6)


@pytest.mark.parametrize(
    ("shift", "time", "sigma"),
    [(3, 0.5, 0.75), (5, 0.5, 5 / 6), (10, 0.1, 10 / 19), (1, 0.3, 0.3), (3, 0, 0), (3, 1, 1)],
)
def test_the_shift_keeps_the_ends_and_moves_the_middle(shift, time, sigma):
    assert shift_sigma(time, shift) == pytest.approx(sigma, rel=1e-12)


@pytest.mark.parametrize("distribution", ["waver", "logitnormal", "uniform"])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_quantiles_of_drawn_levels_are_those_of_the_distribution(distribution, shift):
    """Compares with quantiles computed by torch from a uniform grid; a wrong formula or stream moves them."""
    grid = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    time = {
        "uniform": grid,
        "logitnormal": torch.sigmoid(torch.special.ndtri(grid)),
        "waver": 1 - grid - 1.29 * (torch.cos(torch.pi / 2 * grid) ** 2 - 1 + grid),
    }[distribution]
    expected = shift * time / (1 + (shift - 1) * time)
    drawn = torch.tensor([sample_sigma(distribution, shift, seed=3, position=i) for i in range(4000)]).double()
    at = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
    assert torch.allclose(torch.quantile(drawn, at), torch.quantile(expected, at), atol=0.025)


def test_ltx2_equals_a_direct_transcription_of_its_definition():
    """Reflection at the floor, stretching between quantiles and the uniform share, computed with torch in float64."""
    z = torch.linspace(-4, 4, 401, dtype=torch.float64)
    for shift in (0.5, 1.0, 7.0):
        mean = torch.tensor(shift, dtype=torch.float64).log()
        high, low = torch.sigmoid(mean + 3.0902), torch.sigmoid(mean - 2.5758)
        r = (torch.sigmoid(z + mean) - low) / (high - low)
        r = torch.where(r < 1e-3, 2e-3 - r, r).clamp(0, 1)
        mine = torch.tensor([ltx2(shift, z=float(v), choice=0.5, uniform=0.3) for v in z], dtype=torch.float64)
        assert torch.allclose(mine, r, atol=1e-12)
    assert ltx2(3.0, z=0.0, choice=0.05, uniform=0.0) == 1e-3
    assert ltx2(3.0, z=0.0, choice=0.05, uniform=1.0) == 1.0


def test_draws_are_pinned():
    """The streams must not change between versions: a resumed run would see other noise."""
    levels = [sample_sigma("uniform", 1.0, seed=0, position=position) for position in (0, 1)]
    assert levels == [0.810243512110891, 0.7531218091263792]
    noise = sample_noise((4,), seed=0, position=0)
    assert noise.dtype == torch.float32
    expected = [-1.0189059972763062, -1.114428997039795, -1.0930685997009277, 2.5314741134643555]
    np.testing.assert_allclose(noise.numpy(), expected, rtol=1e-6)
    far = sample_noise((2,), seed=42, position=2**33)
    np.testing.assert_allclose(far.numpy(), [0.9901490807533264, -1.8001530170440674], rtol=1e-6)


def test_noise_is_standard_normal_and_differs_between_samples_and_seeds():
    noise = sample_noise((48, 5, 16, 16), seed=1, position=7)
    assert abs(float(noise.mean())) < 0.02
    assert abs(float(noise.std()) - 1) < 0.02
    assert torch.equal(noise, sample_noise((48, 5, 16, 16), seed=1, position=7))
    for seed, position in ((1, 8), (2, 7), (7, 1)):
        other = sample_noise((48, 5, 16, 16), seed=seed, position=position)
        assert abs(float((noise * other).mean())) < 0.02


def test_the_noise_level_and_the_noise_come_from_independent_streams():
    """Over many samples the level says nothing about the first noise value."""
    levels = torch.tensor([sample_sigma("uniform", 1.0, seed=0, position=i) for i in range(2000)])
    first = torch.tensor([float(sample_noise((1,), seed=0, position=i)[0]) for i in range(2000)])
    assert abs(float(torch.corrcoef(torch.stack([levels, first]))[0, 1])) < 0.06


def test_a_negative_seed_or_position_is_refused():
    with pytest.raises(ValueError, match="position=-1"):
        sample_noise((1,), seed=0, position=-1)


def test_an_unknown_distribution_is_refused():
    with pytest.raises(ValueError, match="'cosine'; expected waver"):
        sample_sigma("cosine", 1.0, seed=0, position=0)
