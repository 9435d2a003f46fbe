"""Learning-rate schedules."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from worldsmith.training.scheduler import LambdaCosine, LambdaLinear, LambdaSchedule, multiplier

ONE_CYCLE = {"cycle_lengths": [1000], "warm_up_steps": [50], "f_start": [0.0], "f_max": [1.0], "f_min": [0.0]}
TWO_CYCLES = {
    "cycle_lengths": [4, 4],
    "warm_up_steps": [2, 2],
    "f_start": [0.0, 0.05],
    "f_max": [1.0, 0.5],
    "f_min": [0.1, 0.2],
}


def sgd(lr: float = 0.1, groups: int = 1) -> torch.optim.SGD:
    parameters = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr * (i + 1)} for i in range(groups)]
    return torch.optim.SGD(parameters, lr=lr)


@pytest.mark.parametrize(
    ("n", "f"),
    [(0, 0), (1, 0.02), (25, 0.5), (50, 1), (100, 0.99318), (499, 0.54294), (500, 0.541289673), (525, 0.5), (1000, 0)],
)
def test_the_cosine_has_its_published_values(n, f):
    assert multiplier(LambdaCosine.Config(**ONE_CYCLE), n) == pytest.approx(f, abs=5e-6)


@pytest.mark.parametrize(("n", "f"), [(0, 0), (1, 0.02), (25, 0.5), (50, 1), (525, 0.5), (1000, 0)])
def test_the_line_has_its_published_values(n, f):
    assert multiplier(LambdaLinear.Config(**ONE_CYCLE), n) == pytest.approx(f, abs=1e-12)


@pytest.mark.parametrize("schedule", [LambdaLinear, LambdaCosine])
def test_two_cycles_have_their_published_values(schedule):
    """The step on which the first cycle ends belongs to it, and the second one begins with its first warm-up step."""
    config = schedule.Config(**TWO_CYCLES)
    expected = [0, 0.5, 1, 0.55, 0.1, 0.275, 0.5, 0.35, 0.2]
    assert [multiplier(config, n) for n in range(9)] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("schedule", [LambdaLinear, LambdaCosine])
def test_after_the_last_cycle_the_end_value_stays(schedule):
    config = schedule.Config(**TWO_CYCLES)
    assert [multiplier(config, n) for n in (9, 10, 1000)] == pytest.approx([0.2] * 3, abs=1e-12)


@pytest.mark.parametrize("schedule", [LambdaLinear, LambdaCosine])
@pytest.mark.parametrize(("length", "end"), [(500, 0.525), (1000, 1.0)])
def test_a_cycle_that_is_not_longer_than_its_warm_up_ends_in_it_and_its_value_stays(schedule, length, end):
    config = schedule.Config(cycle_lengths=[length], warm_up_steps=[1000], f_start=[0.05], f_max=[1.0], f_min=[0.5])
    config.check()
    found = [multiplier(config, n) for n in (0, 1, 250, length, length + 1, 10 * length)]
    assert found == pytest.approx([0.05, 0.05095, 0.2875, end, end, end], abs=1e-12)


def test_a_long_warm_up_in_the_first_of_two_cycles_does_not_delay_the_second():
    config = LambdaLinear.Config(
        cycle_lengths=[4, 4], warm_up_steps=[8, 2], f_start=[0.0, 0.0], f_max=[1.0, 1.0], f_min=[0.0, 0.0]
    )
    found = [multiplier(config, n) for n in range(9)]
    assert found == pytest.approx([0, 0.125, 0.25, 0.375, 0.5, 0.5, 1.0, 0.5, 0.0], abs=1e-12)


def test_learning_rates_equal_those_of_torch_for_every_group():
    """Against LambdaLR with the formula written out, over warm-up, descent and beyond the end, for two groups."""
    config = LambdaLinear.Config(cycle_lengths=[10], warm_up_steps=[3], f_start=[0.1], f_max=[1.0], f_min=[0.2])
    ours, theirs = sgd(groups=2), sgd(groups=2)
    schedule = config.build(optimizer=ours)
    reference = LambdaLR(theirs, lambda n: 0.1 + 0.9 * n / 3 if n < 3 else 0.2 + 0.8 * (10 - min(n, 10)) / 7)
    for _ in range(14):
        assert schedule.learning_rates == pytest.approx(reference.get_last_lr(), rel=1e-12)
        assert [g["lr"] for g in ours.param_groups] == schedule.learning_rates
        for step in (ours, schedule, theirs, reference):
            step.step()


def test_the_cosine_equals_cosine_annealing_of_torch():
    config = LambdaCosine.Config(cycle_lengths=[20], warm_up_steps=[0], f_start=[0.0], f_max=[1.0], f_min=[0.25])
    ours, theirs = sgd(), sgd()
    schedule, reference = config.build(optimizer=ours), CosineAnnealingLR(theirs, T_max=20, eta_min=0.025)
    for _ in range(20):
        assert schedule.learning_rates == pytest.approx(reference.get_last_lr(), rel=1e-9)
        for step in (ours, schedule, theirs, reference):
            step.step()


def test_the_default_first_step_has_a_learning_rate_above_zero():
    assert multiplier(LambdaLinear.Config(), 0) == 1e-6
    assert multiplier(LambdaLinear.Config(), 100) == 1.0


def test_a_saved_schedule_goes_on_where_it_was():
    config = LambdaCosine.Config(**TWO_CYCLES)
    first_optimizer = sgd()
    first = config.build(optimizer=first_optimizer)
    for _ in range(3):
        first_optimizer.step()
        first.step()
    second_optimizer = sgd()
    second = config.build(optimizer=second_optimizer)
    second.resume(first.steps)
    for _ in range(3):
        for step in (first_optimizer, first, second_optimizer, second):
            step.step()
        assert second.learning_rates == first.learning_rates


def test_the_learning_rate_is_logged_at_the_interval(caplog):
    optimizer = sgd()
    schedule = LambdaLinear.Config(**ONE_CYCLE, verbosity_interval=2).build(optimizer=optimizer)
    with caplog.at_level(logging.INFO, logger="worldsmith"):
        for _ in range(5):
            optimizer.step()
            schedule.step()
    assert [r.getMessage() for r in caplog.records] == [
        "learning rate after step 2: 4.000e-03",
        "learning rate after step 4: 8.000e-03",
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cycle_lengths": [10, 10]}, "cycle_lengths = \[10, 10\], warm_up_steps = \[100\].*one entry per cycle"),
        ({name: [] for name in ONE_CYCLE}, "cycle_lengths must be of length 1 or more"),
        ({"warm_up_steps": [-1]}, r"warm_up_steps\[0\] must be at least 0, found -1"),
        ({"f_max": [float("inf")]}, r"f_max\[0\] must be finite and at least 0"),
        ({"f_min": [-0.1]}, r"f_min\[0\] must be finite and at least 0"),
        ({"verbosity_interval": -1}, "verbosity_interval must be at least 0"),
    ],
)
def test_lists_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        LambdaCosine.Config(**fields).check()


def test_linear_and_cosine_configs_are_different_things():
    assert LambdaLinear.Config() == LambdaLinear.Config()
    assert LambdaLinear.Config() != LambdaCosine.Config()


def test_the_class_that_schedules_share_is_refused_before_a_run_starts():
    with pytest.raises(ValueError, match="set type to LambdaLinear, LambdaCosine or LambdaSqrt"):
        LambdaSchedule.Config().check()
