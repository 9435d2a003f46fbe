"""After which steps samples are drawn where the config gives a fraction of the time and no interval."""

from __future__ import annotations

import pytest

from worldsmith.training.callbacks.samples.drawing_budget import MAX_DRAWINGS, DrawingBudget


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def simulate(
    *,
    steps: int,
    step_seconds: float,
    drawing_seconds: float,
    prompts: int = 1,
    first_step: int = 0,
    speed_up: float = 1.0,
) -> tuple[list[tuple[int, int]], float, int]:
    """((step, prompts) of each drawing, fraction of the time that they took, number of decisions)."""
    clock, drawings, checks = Clock(), [], 0
    budget = DrawingBudget(0.03, first_step=first_step, last_step=steps, steps_per_prompt=1.0, clock=clock)

    def draw(step: int, count: int) -> None:
        clock.now += count * drawing_seconds
        budget.add(step, count, count * drawing_seconds)
        drawings.append((step, count))

    if not first_step:
        draw(0, prompts)
    next_check = first_step + 1
    for step in range(first_step + 1, steps + 1):
        clock.now += step_seconds / (1.0 if step < steps // 2 else speed_up)
        if step < next_check:
            continue
        checks += 1
        decision = budget.decide(step, prompts)
        next_check = decision.next_check
        assert next_check > step or step == steps
        if decision.prompts:
            draw(step, decision.prompts)
    return drawings, budget.spent / clock.now, checks


@pytest.mark.parametrize(("steps", "step_seconds", "drawing_seconds"), [(500, 2.0, 5.0), (10_000, 8.0, 60.0)])
def test_a_run_draws_at_both_ends_and_between_within_the_fraction(
    steps: int, step_seconds: float, drawing_seconds: float
) -> None:
    drawings, fraction, checks = simulate(steps=steps, step_seconds=step_seconds, drawing_seconds=drawing_seconds)
    assert drawings[0] == (0, 1)
    assert drawings[-1] == (steps, 1)
    assert len(drawings) >= 4
    assert fraction <= 0.03
    assert checks < len(drawings) * 15


@pytest.mark.parametrize(
    ("drawing_seconds", "prompts", "in_between"), [(5.0, 1, 1), (4.0, 3, 2), (2.0, 4, 4), (9.0, 1, 1)]
)
def test_the_first_samples_between_the_ends_come_after_a_third_of_the_run(
    drawing_seconds: float, prompts: int, in_between: int
) -> None:
    """With fewer prompts where all of them would take too long."""
    drawings, fraction, _ = simulate(steps=500, step_seconds=2.0, drawing_seconds=drawing_seconds, prompts=prompts)
    assert drawings[0] == (0, prompts)
    assert drawings[1][0] <= 500 / 3
    assert drawings[1][1] == in_between
    assert drawings[-1][0] == 500
    assert fraction <= 0.03


def test_steps_that_become_faster_leave_room_for_the_last_drawing() -> None:
    drawings, fraction, _ = simulate(steps=500, step_seconds=2.0, drawing_seconds=6.0, speed_up=1.15)
    assert len(drawings) > 2
    assert drawings[-1] == (500, 1)
    assert fraction <= 0.03


def test_a_cheap_drawing_is_not_repeated_without_end() -> None:
    drawings, fraction, _ = simulate(steps=100_000, step_seconds=1.0, drawing_seconds=0.01)
    assert 20 < len(drawings) <= MAX_DRAWINGS + 1
    assert fraction < 0.03


def test_the_last_drawing_has_as_many_prompts_as_the_time_allows() -> None:
    drawings, fraction, _ = simulate(steps=100, step_seconds=5.0, drawing_seconds=3.0, prompts=3)
    assert drawings == [(0, 3), (30, 1), (100, 1)]
    assert fraction <= 0.03


def test_a_short_run_draws_at_its_end_only_what_is_small() -> None:
    assert simulate(steps=5, step_seconds=1.0, drawing_seconds=0.5)[0] == [(0, 1), (5, 1)]
    assert simulate(steps=5, step_seconds=1.0, drawing_seconds=20.0)[0] == [(0, 1)]


def test_a_resumed_run_estimates_the_cost_until_it_is_measured() -> None:
    drawings, fraction, _ = simulate(steps=1000, step_seconds=1.0, drawing_seconds=2.0, first_step=500)
    assert drawings[0][0] > 500
    assert drawings[-1] == (1000, 1)
    assert fraction <= 0.035


def test_a_run_that_resumes_shortly_before_its_end_draws_all_prompts_if_that_is_quick() -> None:
    """Only the time since the resume is known, and it is too short for the fraction."""
    drawings, _, _ = simulate(steps=800, first_step=734, step_seconds=0.4, drawing_seconds=1.3, prompts=3)
    assert drawings[-1] == (800, 3)
