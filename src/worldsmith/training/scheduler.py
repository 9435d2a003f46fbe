"""Learning-rate schedules in cycles: linear warm-up, then a decay: linear, half a cosine, or by a square root."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any

from worldsmith.config import Configurable, wrong
from worldsmith.config.declare.configurable import walk
from worldsmith.config.declare.ranges import Count, Factor, Length, NotNegative
from worldsmith.config.declare.search import Search
from worldsmith.config.declare.value_types import is_reference
from worldsmith.config.write.values import LAUNCH_WORD, write

if TYPE_CHECKING:
    from torch.optim import Optimizer

logger = logging.getLogger(__name__)

TRIAL_STEPS = 20
"""Runs of at most this many steps only test that training works; their warm-up is not checked."""


class LambdaSchedule(Configurable):
    """Multiplies the learning rate of every group by f(n), where n is the number of completed optimizer steps.

    In a cycle of length L with W warm-up steps: n < W gives f_start + (f_max - f_start)·n/W, then f_min + (f_max -
    f_min)·decay((n - W)/(L - W)). The last step of a cycle still belongs to it. After the last cycle, f keeps its final
    value. With W >= L the cycle ends during its warm-up. A subclass defines `decay`, which falls from 1 to 0.
    """

    class Config(Configurable.Config):
        cycle_lengths: Annotated[list[Count], Length(1)] = field(default_factory=lambda: [20000])
        """Length of each cycle in optimizer steps, including the warm-up."""
        warm_up_steps: Annotated[list[NotNegative], Length(1)] = field(default_factory=lambda: [100])
        """Length of the warm-up of each cycle in optimizer steps."""
        f_start: Annotated[list[Factor], Length(1)] = field(default_factory=lambda: [1.0e-6])
        """Multiplier of the learning rate at the start of each cycle's warm-up."""
        f_max: Annotated[list[Factor], Length(1)] = field(default_factory=lambda: [1.0])
        """Multiplier of the learning rate at the end of each cycle's warm-up."""
        f_min: Annotated[list[Factor], Length(1)] = field(default_factory=lambda: [0.0])
        """Multiplier of the learning rate at the end of each cycle."""
        verbosity_interval: NotNegative = 0
        """Interval at which the learning rate is logged, in optimizer steps. 0: never."""

        def check(self) -> None:
            if self._owner is LambdaSchedule:
                why = "LambdaSchedule is the common base of the schedules"
                raise wrong(self, why=why, remedy="set type to LambdaLinear, LambdaCosine or LambdaSqrt")
            per_cycle = ("cycle_lengths", "warm_up_steps", "f_start", "f_max", "f_min")
            if len({len(getattr(self, name)) for name in per_cycle}) > 1:
                raise wrong(self, *per_cycle, why="each needs one entry per cycle, but their lengths differ")

    def __init__(self, config: Config, *, optimizer: Optimizer) -> None:
        from torch.optim.lr_scheduler import LambdaLR

        config.check()
        self.config = config
        self.scheduler = LambdaLR(optimizer, lambda n: multiplier(config, n))

    @staticmethod
    def decay(progress: float) -> float:
        """Returns the decay factor: 1 at progress 0, falling to 0 at progress 1. Each schedule defines its own."""
        raise TypeError("LambdaSchedule has no decay of its own; use LambdaLinear, LambdaCosine or LambdaSqrt")

    def step(self) -> None:
        """Advances by one optimizer step; logs the learning rates at the interval of the config."""
        self.scheduler.step()
        count, every = self.scheduler.last_epoch, self.config.verbosity_interval
        if every and count % every == 0:
            logger.info("learning rate after step %d: %s", count, ", ".join(f"{lr:.3e}" for lr in self.learning_rates))

    @property
    def learning_rates(self) -> list[float]:
        """Learning rate of each parameter group for the next optimizer step."""
        return [float(lr) for lr in self.scheduler.get_last_lr()]

    @property
    def steps(self) -> int:
        """Number of completed optimizer steps."""
        return int(self.scheduler.last_epoch)

    def resume(self, steps: int) -> None:
        """Sets the number of completed optimizer steps, with the learning rates that this config gives for it.

        A stored schedule is not loaded, since the config of a resumed run may have changed.
        """
        inner = self.scheduler
        rates = [base * multiplier(self.config, steps) for base in inner.base_lrs]
        state: dict[str, Any] = {**inner.state_dict(), "base_lrs": inner.base_lrs}
        inner.load_state_dict({**state, "last_epoch": steps, "_step_count": steps + 1, "_last_lr": rates})
        for group, rate in zip(inner.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


class LambdaLinear(LambdaSchedule):
    """Linear decay after the warm-up."""

    class Config(LambdaSchedule.Config):
        """Length, warm-up and learning-rate multipliers of each cycle; adds no fields to `LambdaSchedule.Config`."""

    @staticmethod
    def decay(progress: float) -> float:
        return 1.0 - progress


class LambdaCosine(LambdaSchedule):
    """Cosine decay (half a period) after the warm-up."""

    class Config(LambdaSchedule.Config):
        """Length, warm-up and learning-rate multipliers of each cycle; adds no fields to `LambdaSchedule.Config`."""

    @staticmethod
    def decay(progress: float) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * progress))


AnySchedule = Annotated[LambdaSchedule.Config, Search(choices=("LambdaLinear", "LambdaCosine"))]


class LambdaSqrt(LambdaSchedule):
    """Decay by 1 - sqrt(progress) after the warm-up: steep first, then flatter."""

    class Config(LambdaSchedule.Config):
        """Length, warm-up and learning-rate multipliers of each cycle; adds no fields to `LambdaSchedule.Config`."""

    @staticmethod
    def decay(progress: float) -> float:
        return 1.0 - math.sqrt(progress)


def multiplier(config: LambdaSchedule.Config, n: int) -> float:
    """Returns f(n), the factor on the learning rate for the optimizer step after n completed steps."""
    cycle, last = 0, len(config.cycle_lengths) - 1
    while cycle < last and n > config.cycle_lengths[cycle]:
        n -= config.cycle_lengths[cycle]
        cycle += 1
    length, warm_up = config.cycle_lengths[cycle], config.warm_up_steps[cycle]
    start, top, bottom = config.f_start[cycle], config.f_max[cycle], config.f_min[cycle]
    n = min(n, length)
    if n < warm_up or warm_up == length == n:  # the latter: 0/0 in the decay
        return start + (top - start) * n / warm_up
    progress = (n - warm_up) / (length - warm_up)
    decay = config._owner.decay  # type: ignore[attr-defined]
    return bottom + (top - bottom) * float(decay(progress))


def schedule_warnings(config: LambdaSchedule.Config, steps: int, rate: float) -> Iterator[str]:
    """Yields warnings about cycles that are not longer than their warm-up, and about runs longer than the last cycle.

    A config with an unresolved reference, such as to an environment variable that is not set, gets no warnings.

    Args:
        config: Schedule.
        steps: Optimizer steps of the run.
        rate: Learning rate that the schedule multiplies.
    """
    if any(map(is_reference, (steps, rate, *(value for _, value in walk(config))))):
        return
    begin = 0
    for cycle, (length, warm_up) in enumerate(zip(config.cycle_lengths, config.warm_up_steps, strict=True)):
        if warm_up >= length and begin < steps and steps > TRIAL_STEPS:
            last = min(steps, begin + length)
            yield (
                f"scheduler.warm_up_steps[{cycle}] = {warm_up} is not below cycle_lengths[{cycle}] = {length}: the "
                f"learning rate is still in warm-up at step {last}, where it reaches {multiplier(config, last):.1%} of "
                "optimizer.lr, and there is no decay"
            )
        begin += length
    if begin < steps:
        end = rate * multiplier(config, begin)
        longer = write([*config.cycle_lengths[:-1], config.cycle_lengths[-1] + steps - begin], LAUNCH_WORD)
        yield (
            f"scheduler.cycle_lengths end after {begin} steps, but trainer.max_iter is {steps}: the last "
            f"{steps - begin} steps run at learning rate {f'{end:g}' if end else '0 and train no weights'}. Set "
            f"scheduler.cycle_lengths={longer} for a schedule as long as the run"
        )
