"""The v-prediction component: its noise table against diffusers' and the published one, its loss and its draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from worldsmith.config import WrongValueError
from worldsmith.objectives.v_prediction import VPrediction

PUBLISHED = {
    3.0: [0.99872637, 0.99739695, 0.62374175, 0.30875248, 0.10411005, 0.00024961, 0.0],
    1.0: [0.99957490, 0.99911636, 0.80774808, 0.49093667, 0.18110527, 0.00044361, 0.0],
}
"""√ᾱ by shift, at these rows of the table."""
ROWS = [0, 1, 250, 500, 750, 998, 999]


@dataclass
class Clip:
    position: int


def objective(**fields: object) -> VPrediction:
    made: VPrediction = VPrediction.Config(**fields).build()  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize("shift", [3.0, 1.0])
def test_the_noise_table_is_that_of_the_schedulers(shift: float) -> None:
    from diffusers import CogVideoXDDIMScheduler, CogVideoXDPMScheduler

    table = objective(shift_scale=shift).alphas_cumprod
    torch.testing.assert_close(table.sqrt()[ROWS], torch.tensor(PUBLISHED[shift]).double(), atol=1e-6, rtol=0)
    for kind in (CogVideoXDDIMScheduler, CogVideoXDPMScheduler):
        scheduler = kind(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", prediction_type="v_prediction",
            rescale_betas_zero_snr=True, snr_shift_scale=shift, timestep_spacing="trailing",
        )  # fmt: skip
        torch.testing.assert_close(table, scheduler.alphas_cumprod, atol=1e-12, rtol=0)


@pytest.mark.parametrize("most", [None, 5.0])
@pytest.mark.parametrize("kind", ["l2", "l1"])
@pytest.mark.parametrize("shift", [3.0, 1.0])
def test_the_loss_is_the_weighted_error_of_the_clean_latents(shift: float, kind: str, most: float | None) -> None:
    """As SAT writes it; its weights are 393, 37, 1.5, 1 and 1 at these rows of the first table."""
    made = objective(shift_scale=shift, loss_type=kind, max_weight=most)
    draw = torch.Generator().manual_seed(0)
    x0, answers, noise = (torch.randn(5, 4, 3, 2, 2, generator=draw) for _ in range(3))
    rows = [0, 14, 300, 998, 999]
    draws = made.levels(rows, list(noise))
    noisy, timesteps = made.inputs(x0, draws)
    assert timesteps.tolist() == rows
    alphas = made.alphas_cumprod[rows].view(-1, 1, 1, 1, 1)
    exact = alphas.sqrt() * x0.double() + (1 - alphas).sqrt() * noise.double()
    torch.testing.assert_close(torch.stack(noisy).double(), exact, atol=1e-6, rtol=1e-6)
    clean = alphas.sqrt() * exact - (1 - alphas).sqrt() * answers.double()
    error = clean - x0.double()
    weights = (1 / (1 - alphas)).clamp(max=most or math.inf)
    wanted = (weights * (error.square() if kind == "l2" else error.abs())).flatten(1).mean(1)
    losses = made.losses(answers, x0, draws).double()
    torch.testing.assert_close(losses, wanted, rtol=1e-6, atol=1e-6)
    velocity = alphas.sqrt() * noise.double() - (1 - alphas).sqrt() * x0.double()
    plain = (answers.double() - velocity).square().flatten(1).mean(1)
    same = [abs(float(a - b)) <= 1e-6 * float(b) + 1e-6 for a, b in zip(losses, plain, strict=True)]
    if kind == "l2":  # below the limit of the weight it is the mean square of v's error
        assert same == [most is None or float(w) < most for w in weights.flatten()]


def test_draws_depend_on_seed_and_position_alone() -> None:
    made, shapes = objective(), [(4, 1, 2, 2)] * 3
    first = made.draw([Clip(5), Clip(6), Clip(7)], shapes, seed=1)
    again = made.draw([Clip(7), Clip(5)], shapes[:2], seed=1)
    assert again.timesteps.tolist() == first.timesteps[[2, 0]].tolist()
    assert torch.equal(again.noise[1], first.noise[0])
    assert not torch.equal(made.draw([Clip(5)], shapes[:1], seed=2).noise[0], first.noise[0])


def test_all_rows_are_as_likely() -> None:
    made = objective(num_timesteps=10)
    counts = torch.bincount(torch.tensor([made.timestep(p, seed=3) for p in range(3000)]), minlength=10)
    assert counts.min() > 230
    assert counts.max() < 370


@pytest.mark.parametrize("parts", [3, 40])
def test_with_strata_neighbours_in_the_stream_draw_from_different_parts(parts: int) -> None:
    made, firsts = objective(timestep_strata=parts), set()
    for group in range(20):
        rows = [made.timestep(group * parts + place, seed=3) for place in range(parts)]
        assert sorted(int(row * parts / 1000 + 1e-9) for row in rows) == pytest.approx(list(range(parts)), abs=1)
        assert len(set(rows)) == parts
        firsts.add(rows[0] * parts // 1000)
    assert len(firsts) > 1  # a rank does not keep its part


def test_offset_noise_is_one_number_a_sample() -> None:
    plain, offset = objective().noise((2, 1, 2, 2), 4, seed=0), objective(offset_noise=0.1)
    added = offset.noise((2, 1, 2, 2), 4, seed=0) - plain
    torch.testing.assert_close(added, added.flatten()[0].expand_as(added), atol=1e-6, rtol=0)
    assert added.abs().max() > 1e-4


@pytest.mark.parametrize("fields", [{"beta_start": 0.02}, {"num_timesteps": 10, "timestep_strata": 11}])
def test_settings_that_do_not_go_together_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(WrongValueError):
        objective(**fields)
