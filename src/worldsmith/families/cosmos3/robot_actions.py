"""Rectified flow of latents and robot actions: one noise level per sample, and a loss of each.

A row of robot actions is x_t = σ·ε + (1-σ)·x0 with the σ of its sample; the network predicts its velocity ε - x0. Given
rows are clean and have no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from worldsmith.config.declare.ranges import PositiveFactor
from worldsmith.objectives.objective import BatchLoss
from worldsmith.objectives.rectified_flow import RectifiedFlow, SigmaDraws

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.video_sample import RobotActions, VideoSample

ACTION_NOISE_STREAM = 20
"""Number of the random stream for the noise of robot actions."""


@dataclass(frozen=True, slots=True)
class ActionDraws:
    """Noisy robot actions of the n samples of a batch, and constants of their loss.

    The rows are those of all samples; they are zero-padded to the channels of the network.
    """

    noisy: Tensor
    """Input of the network: noisy values, or clean values at given rows; float32 [rows, channels]."""
    targets: Tensor
    """Target velocity, float32 [rows, channels]."""
    weights: Tensor
    """Factor on each squared error in the mean error of its sample, float32 [rows, channels]; 0 if it has no loss."""
    samples: Tensor
    """Index of the sample of each row, int64 [rows]."""
    scales: Tensor
    """Factor on the action loss of each sample in the sum of the batch, float64 [n]."""
    num_predicted: int
    """Number of samples with noised rows."""

    def losses(self, velocities: Tensor) -> Tensor:
        """Returns the action loss of each sample, float32 [n], from the predicted velocities [rows, channels]."""
        errors = ((velocities - self.targets).square() * self.weights).sum(dim=1)
        return errors.new_zeros(len(self.scales)).index_add(0, self.samples, errors)


class ActionFlow(RectifiedFlow):
    """Rectified flow of videos with robot actions: forward and inverse dynamics, and joint prediction of both.

    The noise level of a sample is that of its latents and of its actions. Samples without robot actions are plain
    videos.
    """

    allows_clean_samples: ClassVar[bool] = True

    class Config(RectifiedFlow.Config):
        only_family: ClassVar[str] = "cosmos3"

        action_loss_weight: PositiveFactor = 1.0
        """Factor on the loss of robot actions, as `loss_scale` on that of the latents. The action loss of a sample is
        its mean squared error over rows and used channels, where given rows count as zero error; the mean over the
        samples counts those without noised rows as 0. With `normalize_loss_by_active`, both means exclude what is
        given: the first is over noised rows, the second over the samples of a pack (batch) that have noised rows, so
        the action loss does not shrink with the fraction of forward dynamics in the data."""

    config: Config

    def draw(self, samples: Sequence[VideoSample], shapes: Sequence[Sequence[int]], *, seed: int) -> SigmaDraws:  # type: ignore[override]
        for sample in samples:
            if sample.condition_frames >= sample.latent_shape[0] and not num_noised(sample.actions):
                raise ValueError(
                    f"sample {sample.key}: all latent frames and robot actions are given, none is predicted"
                )
        return super().draw(samples, shapes, seed=seed)

    def draw_actions(
        self, samples: Sequence[VideoSample], draws: SigmaDraws, channels: int, *, seed: int
    ) -> ActionDraws | None:
        """Adds noise to the robot actions of a batch, on the CPU.

        The noise depends only on `seed` and the position of the sample.

        Args:
            samples: Samples of the batch.
            draws: Noise levels of the batch, from `draw`.
            channels: Channels of robot actions in the network.
            seed: Seed of the run.

        Returns:
            The noisy actions; None: no sample has robot actions.
        """
        import torch
        from torch.nn.functional import pad

        from worldsmith.objectives.noise_schedule import random_noise

        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        owners: list[int] = []
        for index, (sample, sigma) in enumerate(zip(samples, draws.sigmas, strict=True)):
            actions = sample.actions
            if actions is None:
                continue
            rows, clean, (count, used) = actions.rows.float(), actions.clean_rows, actions.rows.shape
            noise = random_noise(rows.shape, seed=seed, position=sample.position, stream=ACTION_NOISE_STREAM)
            noisy = torch.cat((rows[:clean], torch.lerp(rows[clean:], noise[clean:], sigma)))
            weights = torch.zeros_like(rows)
            weights[clean:] = 1 / (used * (max(count - clean, 1) if self.config.normalize_loss_by_active else count))
            own = noisy, noise - rows, weights
            parts.append(tuple(pad(part, (0, channels - used)) for part in own))  # type: ignore[arg-type]
            owners += [index] * count
        if not parts:
            return None
        noised = [bool(num_noised(sample.actions)) for sample in samples]
        scale = self.config.action_loss_weight * self.weigh(samples)
        scale /= max(sum(noised), 1) if self.config.normalize_loss_by_active else len(samples)
        noisy, targets, weights = (torch.cat(own) for own in zip(*parts))
        return ActionDraws(
            noisy=noisy,
            targets=targets,
            weights=weights,
            samples=torch.tensor(owners),
            scales=torch.tensor([scale * own for own in noised], dtype=torch.float64),
            num_predicted=sum(noised),
        )

    def add_up_parts(
        self,
        losses: Tensor,
        action_losses: Tensor | None,
        draws: SigmaDraws,
        actions: ActionDraws | None,
        *,
        tokens: int,
    ) -> BatchLoss:
        """Returns the weighted sum of a batch's losses of latents and robot actions, with metrics to log.

        The metrics "loss" and "loss_by_noise" are the sum of both losses of a sample without their weights; "loss_of"
        has the mean of each loss over the samples in which it has something to predict.

        Args:
            losses: Loss of the latents of each sample [n], from `losses`.
            action_losses: Action loss of each sample [n]; None: no sample has robot actions.
            draws: Noise levels from `draw`.
            actions: Noisy actions from `draw_actions`.
            tokens: Number of tokens of the batch.
        """
        latents = losses.double()
        num_noisy = sum(frames < noise.shape[1] for frames, noise in zip(draws.condition_frames, draws.noise))
        own = latents.new_zeros(len(draws)) if action_losses is None else action_losses.double()
        found = self.add_up(losses + own, draws, tokens=tokens)
        total = (latents * draws.scales).sum()
        if actions is not None:
            total = total + (own * actions.scales).sum()
        parts = {"latents": (latents, num_noisy), "actions": (own, actions.num_predicted if actions else 0)}
        metrics = {f"loss_of[{name}]": (part.detach().sum(), float(count)) for name, (part, count) in parts.items()}
        return replace(found, sum=total, metrics={**found.metrics, **metrics})


def num_noised(actions: RobotActions | None) -> int:
    """Returns the number of robot actions that are predicted."""
    return 0 if actions is None else len(actions.rows) - actions.clean_rows
