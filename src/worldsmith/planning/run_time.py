"""How long a whole run takes: its steps, validations and saves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worldsmith.planning.seconds import EFFICIENCIES, NOTHING, Range, StepSeconds, over_rates

if TYPE_CHECKING:
    from worldsmith.training.trainer import Trainer

FORWARD = Range(0.25, 0.5)
"""Assumed share of a step that a forward pass alone takes: a quarter where layers are recomputed, half of adapters'."""


@dataclass(frozen=True, slots=True)
class RunTime:
    """Seconds in which all ranks are taken. Loading, drawing samples and waiting for data are not counted."""

    ranks: int
    count: int
    """Of steps."""
    steps: Range
    saves: Range
    """In which the steps wait for a save."""
    validation: Range | None
    """None: nobody knows how many packs its data are."""

    @property
    def total(self) -> Range:
        return self.steps + self.saves + (self.validation or NOTHING)

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": self.total.to_json(),
            "gpu_hours": (self.total * (self.ranks / 3600)).to_json(),
            "count": self.count,
            "steps": self.steps.to_json(),
            "saves": self.saves.to_json(),
            "validation": None if self.validation is None else self.validation.to_json(),
        }


def run_time(
    config: Trainer.Config, step: StepSeconds, *, ranks: int, staged_bytes: int, checkpoint_bytes: int
) -> RunTime:
    """Of all steps of `config`. A rank copies `staged_bytes` for a save."""
    loop, settings = config.trainer, config.checkpoint
    written = over_rates(checkpoint_bytes, EFFICIENCIES["disk"][0])
    staged = over_rates(staged_bytes, EFFICIENCIES["staging"][0])
    saves = -(-loop.max_iter // settings.save_iter)
    waited = staged * (saves - 1) + written if settings.async_save else written * saves
    return RunTime(ranks, loop.max_iter, step.total * loop.max_iter, waited, validation_time(config, step))


def validation_time(config: Trainer.Config, step: StepSeconds) -> Range | None:
    """Of all validations; live weights, and their average where there is one, see each pack."""
    loop = config.trainer
    if not loop.run_validation:
        return NOTHING
    if loop.max_val_iter is None:
        return None
    times = loop.run_validation_on_start + -(-loop.max_iter // loop.validation_iter)
    packs = times * loop.max_val_iter * (2 if config.model.config.ema.enabled else 1) / loop.grad_accum_iter
    return Range(step.total.fast * FORWARD.fast, step.total.slow * FORWARD.slow) * packs
