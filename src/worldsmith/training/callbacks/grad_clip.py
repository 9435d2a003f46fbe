"""Gradient clipping as a callback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from worldsmith.config.declare.ranges import Range
from worldsmith.training.callbacks.base import Callback, TrainingRun
from worldsmith.training.gradients.grad_clip import clip_gradients

if TYPE_CHECKING:
    from worldsmith.training.step import Step


class GradClip(Callback):
    """Scales the gradient of all trained parameters down to a global L2 norm."""

    class Config(Callback.Config):
        clip_norm: Annotated[float, Range(gt=0)] = 1.0
        """Largest global L2 norm of the gradient; steps with a larger one are scaled down to it."""
        force_finite: bool = True
        """Whether NaN and infinite gradient entries become zero. False: such a step is skipped, as in float16."""

    config: Config

    def on_before_optimizer_step(self, trainer: TrainingRun, step: Step) -> None:
        repair = self.config.force_finite and not step.overflowed
        step.gradient = clip_gradients(trainer.state.parameters, self.config.clip_norm, force_finite=repair)
