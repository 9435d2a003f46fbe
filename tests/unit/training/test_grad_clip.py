"""Clipping, repairing and refusing gradients."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
import torch.distributed as dist
from torch import nn

from worldsmith.training.callbacks.grad_clip import clip_gradients
from worldsmith.training.step import GradNorm, StepGuard


def network_with_gradients(scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    (scale * network(torch.randn(5, 3)).square().sum()).backward()
    return network


@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 1e6])
def test_clipping_equals_that_of_torch(clip_norm):
    ours, theirs = network_with_gradients(), network_with_gradients()
    result = clip_gradients(ours.parameters(), clip_norm)
    norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm)
    assert result == GradNorm(norm=float(norm), finite=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours.parameters(), theirs.parameters()))


def test_without_a_limit_the_norm_is_only_measured():
    network = network_with_gradients()
    before = [p.grad.clone() for p in network.parameters()]
    result = clip_gradients(network.parameters(), None)
    assert result.norm == pytest.approx(float(torch.cat([g.flatten() for g in before]).norm()), rel=1e-6)
    assert all(torch.equal(p.grad, g) for p, g in zip(network.parameters(), before))


def test_forcing_zeroes_single_entries_and_clips_by_the_norm_of_the_rest():
    network = network_with_gradients()
    network[0].weight.grad[1, 2] = float("nan")
    network[1].bias.grad[0] = float("-inf")
    rest = torch.cat([torch.nan_to_num(p.grad, 0, 0, 0).flatten() for p in network.parameters()])
    result = clip_gradients(network.parameters(), 0.1, force_finite=True)
    assert result.finite
    assert result.zeroed == 2
    assert result.norm == pytest.approx(float(rest.norm()), rel=1e-6)
    clipped = torch.cat([p.grad.flatten() for p in network.parameters()])
    assert torch.allclose(clipped, rest * 0.1 / (rest.norm() + 1e-6), rtol=1e-5)


def test_without_forcing_a_gradient_that_is_not_finite_is_reported_and_left_alone():
    network = network_with_gradients()
    network[0].weight.grad[1, 2] = float("inf")
    before = copy.deepcopy(network[1].weight.grad)
    assert not clip_gradients(network.parameters(), 0.1).finite
    assert torch.equal(network[1].weight.grad, before)


def test_a_gradient_of_which_nothing_is_left_is_not_usable():
    network = network_with_gradients()
    for p in network.parameters():
        p.grad.fill_(float("nan"))
    result = clip_gradients(network.parameters(), 0.1, force_finite=True)
    assert not result.finite
    assert result.norm == 0.0
    assert result.zeroed == sum(p.numel() for p in network.parameters())


def test_a_gradient_that_is_zero_by_itself_is_usable():
    network = network_with_gradients(scale=0.0)
    assert clip_gradients(network.parameters(), 0.1, force_finite=True) == GradNorm(norm=0.0, finite=True)


def test_sharded_gradients_are_clipped_like_whole_ones():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    plain = network_with_gradients()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        sharded = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
        sharded(torch.randn(5, 3)).square().sum().backward()
        for network in (plain, sharded):
            local = network[0].weight.grad
            (local if network is plain else local.to_local())[0, 0] = float("nan")
        results = [clip_gradients(n.parameters(), 0.1, force_finite=True) for n in (plain, sharded)]
        assert results[0].norm == pytest.approx(results[1].norm, rel=1e-6)
        assert results[0].zeroed == results[1].zeroed == 1
        for a, b in zip(plain.parameters(), sharded.parameters()):
            assert torch.allclose(a.grad, b.grad.full_tensor(), rtol=1e-5)
    finally:
        dist.destroy_process_group()


def test_a_limit_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="clip_norm must be positive, found 0"):
        clip_gradients([], 0.0)


def test_steps_are_skipped_for_a_bad_loss_or_gradient_and_the_run_stops_after_the_limit(caplog):
    guard = StepGuard(max_consecutive=2)
    good, bad = GradNorm(norm=1.0, finite=True), GradNorm(norm=float("inf"), finite=False)
    with caplog.at_level(logging.WARNING, logger="worldsmith"):
        assert not guard.must_skip(0, 0.5, good)
        assert guard.must_skip(1, float("nan"), good)
        assert guard.must_skip(2, 0.5, bad)
        assert not guard.must_skip(3, 0.5, good)
        assert guard.must_skip(4, 0.5, bad)
        assert guard.must_skip(5, 0.5, bad)
    assert guard.state_dict() == {"skipped": 4, "consecutive": 2}
    assert "Skipping step 1: the loss is nan (1 skipped so far)" in caplog.text
    assert "Skipping step 2: the gradient norm is inf (2 skipped so far)" in caplog.text
    resumed = StepGuard(max_consecutive=2)
    resumed.load_state_dict(guard.state_dict())
    with pytest.raises(FloatingPointError, match="step 6: the loss is inf: 3 unusable steps in a row"):
        resumed.must_skip(6, float("inf"), good)


def test_a_repaired_gradient_does_not_save_a_step_whose_loss_is_not_finite():
    assert StepGuard().must_skip(0, float("nan"), GradNorm(norm=1.0, finite=True, zeroed=3))
