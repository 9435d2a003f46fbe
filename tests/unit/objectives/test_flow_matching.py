"""Noisy inputs, velocity targets and per-sample losses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from worldsmith.objectives.rectified_flow import noisy_input, per_sample_losses, velocity_target


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sigma", [0.0, 0.2, 0.75, 1.0])
def test_data_and_noise_are_recovered_from_input_and_velocity(sigma):
    """x0 = x_t - σ·v and ε = x_t + (1-σ)·v."""
    x0, noise = randn(4, 3, 2, 2), randn(4, 3, 2, 2, seed=1)
    noisy, velocity = noisy_input(x0, noise, sigma), velocity_target(x0, noise)
    assert torch.allclose(noisy - sigma * velocity, x0, atol=1e-6)
    assert torch.allclose(noisy + (1 - sigma) * velocity, noise, atol=1e-6)


def test_condition_frames_are_exactly_clean_and_the_others_are_noisy():
    x0, noise = randn(4, 5, 2, 2), randn(4, 5, 2, 2, seed=1)
    before = x0.clone()
    noisy = noisy_input(x0, noise, 0.7, condition_frames=2)
    assert torch.equal(noisy[:, :2], x0[:, :2])
    assert torch.equal(noisy[:, 2:], noisy_input(x0, noise, 0.7)[:, 2:])
    assert torch.equal(x0, before)


def test_losses_equal_a_loop_over_samples_of_mixed_shapes_in_their_order():
    shapes = [(4, 5, 2, 2), (4, 1, 4, 4), (4, 5, 2, 2), (4, 3, 2, 4), (4, 1, 4, 4)]
    clean = [1, 0, 0, 2, 0]
    velocities = [randn(*shape, seed=i) for i, shape in enumerate(shapes)]
    targets = [randn(*shape, seed=10 + i) for i, shape in enumerate(shapes)]
    everything, active = [], []
    for velocity, target, k in zip(velocities, targets, clean):
        mask = torch.ones_like(target)
        mask[:, :k] = 0
        everything.append(F.mse_loss(velocity * mask, target * mask))
        active.append(F.mse_loss(velocity[:, k:], target[:, k:]))
    assert torch.allclose(per_sample_losses(velocities, targets, clean), torch.stack(everything), rtol=1e-5)
    by_active = per_sample_losses(velocities, targets, clean, normalize_by_active=True)
    assert torch.allclose(by_active, torch.stack(active), rtol=1e-5)


def test_nothing_flows_back_through_condition_frames():
    velocity = randn(4, 5, 2, 2).requires_grad_()
    per_sample_losses([velocity], [randn(4, 5, 2, 2, seed=1)], [2]).sum().backward()
    assert torch.count_nonzero(velocity.grad[:, :2]) == 0
    assert torch.all(velocity.grad[:, 2:] != 0)


def test_a_condition_frame_that_is_not_finite_does_not_spoil_the_loss():
    velocity = randn(4, 3, 2, 2)
    velocity[:, 0] = float("nan")
    assert torch.isfinite(per_sample_losses([velocity], [randn(4, 3, 2, 2, seed=1)], [1])).all()


def test_low_precision_velocities_are_compared_in_float32():
    velocity, target = randn(4, 3, 2, 2).bfloat16(), randn(4, 3, 2, 2, seed=1)
    losses = per_sample_losses([velocity], [target], [0])
    assert losses.dtype == torch.float32
    assert torch.allclose(losses[0], F.mse_loss(velocity.float(), target), rtol=1e-6)


def test_a_sample_without_a_frame_to_learn_is_refused():
    with pytest.raises(ValueError, match="sample 1: 3 conditioning frames of 3 latent frames"):
        per_sample_losses([randn(4, 3, 2, 2)] * 2, [randn(4, 3, 2, 2)] * 2, [0, 3])


def test_shapes_that_differ_are_refused_with_the_sample():
    with pytest.raises(ValueError, match="sample 0: velocity"):
        per_sample_losses([randn(4, 3, 2, 2)], [randn(4, 1, 2, 2)], [0])
