"""Our UniPC against diffusers' scheduler and against published values of the schedule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import UniPCMultistepScheduler

from worldsmith.families.cosmos3.sampling.unipc import UniPC, flow_schedule


def velocity_field(x: torch.Tensor, timestep: int) -> torch.Tensor:
    """A smooth field that depends on place and time and has no exact solution."""
    return torch.sin(3 * x) + 0.7 * x - timestep / 1500 + 0.2 * x.roll(1)


@pytest.mark.parametrize(
    ("steps", "shift"),
    [(1, 1.0), (2, 1.0), (3, 10.0), (7, 3.0), (12, 5.0), (35, 1.0), (35, 5.0), (35, 10.0), (50, 3.0)],
)
def test_states_equal_diffusers_at_every_step(steps: int, shift: float) -> None:
    """Every intermediate state equals UniPCMultistepScheduler on the native flow grid, up to float32 rounding."""
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)
    scheduler.set_timesteps(steps, sigmas=np.linspace(1 - 1 / 1000, 0, steps + 1)[:-1])
    schedule = flow_schedule(steps, shift)
    assert list(schedule.timesteps) == scheduler.timesteps.tolist()
    torch.testing.assert_close(torch.tensor(schedule.sigmas), scheduler.sigmas, rtol=0, atol=0)

    ours = theirs = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    solver = UniPC(schedule)
    for timestep in scheduler.timesteps:
        theirs = scheduler.step(velocity_field(theirs, int(timestep)), timestep, theirs).prev_sample
        ours = solver.step(velocity_field(ours, int(timestep)), ours)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("steps", "shift", "first", "last"),
    [
        (35, 5, [0.999800, 0.993948, 0.987817], [0.232369, 0.128090]),
        (35, 10, [0.999900, 0.996965, 0.993871], [0.377109, 0.227092]),
        (50, 3, [0.999666, 0.992907, 0.985963], [0.111008, 0.057637]),
    ],
)
def test_schedule_has_the_published_noise_levels(steps: int, shift: int, first: list[float], last: list[float]) -> None:
    """σ at both ends equals the published values, and a 0 follows."""
    sigmas = flow_schedule(steps, shift).sigmas
    assert len(sigmas) == steps + 1
    assert sigmas[:3] == pytest.approx(first, abs=1e-6)
    assert sigmas[-3:-1] == pytest.approx(last, abs=1e-6)
    assert sigmas[-1] == 0


def test_timesteps_are_truncated() -> None:
    """The network is told whole numbers, cut and not rounded."""
    assert flow_schedule(35, 5).timesteps[:4] == (999, 993, 987, 981)
    assert flow_schedule(35, 5).timesteps[-2:] == (232, 128)
    assert flow_schedule(35, 10).timesteps[:5] == (999, 996, 993, 990, 987)


def test_straight_flow_is_solved_exactly() -> None:
    """With the true velocity of a single target every schedule ends on the target."""
    target = torch.randn(5, generator=torch.Generator().manual_seed(1))
    noise = torch.randn(5, generator=torch.Generator().manual_seed(2))
    schedule = flow_schedule(6, 5)
    solver = UniPC(schedule)
    x = schedule.sigmas[0] * noise + (1 - schedule.sigmas[0]) * target
    for sigma in schedule.sigmas[:-1]:
        x = solver.step((x - target) / sigma, x)
    torch.testing.assert_close(x, target)
