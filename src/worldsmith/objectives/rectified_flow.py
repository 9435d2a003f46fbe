"""Rectified flow: the network predicts the velocity ε - x0 at x_t = σ·ε + (1-σ)·x0; the loss is a masked squared error.

The first `condition_frames` latent frames of a sample are clean in the network's input: they equal x0 and have no loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol

from worldsmith.config.declare.ranges import PositiveFactor, Range
from worldsmith.config.errors import WrongValueError
from worldsmith.objectives.noise_objective import NOISE_BINS, Draws, NoiseObjective, sum_by_noise
from worldsmith.objectives.objective import BatchLoss

if TYPE_CHECKING:
    from torch import Tensor

Distribution = Literal["waver", "logitnormal", "uniform", "ltx2"]
PositiveNumber = Annotated[int, Range(gt=0)] | PositiveFactor
Shift = PositiveNumber | dict[str, PositiveNumber]

TIMESTEP_SCALE = 1000.0
# The published table is that of 256, 480 and 720; clips of tier 704 count as 720 there. Tiers below 256 are ours.
# Larger tiers have no published shift: a run at such a tier must name one.
DEFAULT_SHIFTS: dict[str, int | float] = {"64": 1, "96": 1, "128": 2, "256": 3, "480": 5, "704": 10, "720": 10}
DYNAMIC_KEYS = {"video": "dynamic_shift_base_num_tokens_video", "image": "dynamic_shift_base_num_tokens_image"}


class FlowSample(Protocol):
    """Attributes of a training sample that `RectifiedFlow` uses."""

    position: int
    latent_shape: tuple[int, int, int]
    num_frames: int
    condition_frames: int
    resolution: str


@dataclass(frozen=True, slots=True)
class SigmaDraws(Draws):
    """Noise levels σ in [0, 1] and noise of a batch, with the constants of its loss."""

    sigmas: list[float]
    condition_frames: list[int]
    """Number of clean latent frames at the beginning of each sample."""
    clean: Tensor
    """`condition_frames` as int64 [n]."""
    scales: Tensor
    """Factor on the loss of each sample in the sum of the batch, float64 [n]."""


class RectifiedFlow(NoiseObjective):
    """Rectified-flow (flow-matching) objective: the network predicts the velocity, noise minus clean latents."""

    allows_clean_samples: ClassVar[bool] = False
    """Whether all frames of a sample may be clean, since something else is predicted; its loss is then 0."""

    class Config(NoiseObjective.Config):
        video_distribution: Distribution = "waver"
        """Distribution from which the noise level of videos is sampled, before the shift."""
        image_distribution: Distribution = "logitnormal"
        """Distribution from which the noise level of images (samples of one frame) is sampled, before the shift."""
        shift: Shift = field(default_factory=lambda: dict(DEFAULT_SHIFTS))
        """Shift of noise levels towards more noise: one number, or a table with one number per resolution bucket. A
        table with the key dynamic_shift_base_num_tokens_video (or _image) sets the shift to sqrt(latent size / value
        of the key)."""
        shift_image: Shift | None = None
        """Shift for images (samples of one frame), as for `shift`. None: `shift` applies to images, too."""
        loss_scale: PositiveFactor = 1.0
        """Factor on the loss of videos and, without `image_loss_scale`, of images."""
        image_loss_scale: PositiveFactor | None = None
        """Factor on the loss of images (samples of one frame). None: `loss_scale`."""
        normalize_loss_by_active: bool = False
        """Whether the mean error of a sample excludes its clean conditioning frames. False: they count as zero
        error."""
        sample_level_loss_averaging: bool = True
        """Whether the loss of a step is the mean over all its samples. False: the mean over the mean losses of packs
        (batches)."""

        def check(self) -> None:
            check_shift("shift", self.shift)
            if self.shift_image is not None:
                check_shift("shift_image", self.shift_image)

        def check_tier(self, tier: str) -> None:
            """Raises ValueError if `shift` or `shift_image` is a table without the resolution bucket `tier`."""
            for name, shift in (("shift", self.shift), ("shift_image", self.shift_image)):
                if isinstance(shift, dict) and not set(DYNAMIC_KEYS.values()) & set(shift):
                    tier_shift(name, shift, tier)

    def __init__(self, config: Config) -> None:
        config.check()
        self.config = config

    def draw(self, samples: Sequence[FlowSample], shapes: Sequence[Sequence[int]], *, seed: int) -> SigmaDraws:
        """Samples noise level σ and noise of each sample; both depend only on `seed` and `sample.position`."""
        from worldsmith.objectives.noise_schedule import sample_noise

        pairs = zip(samples, shapes, strict=True)
        noise = [sample_noise(shape, seed=seed, position=sample.position) for sample, shape in pairs]
        return self.levels(samples, [self.sigma(sample, seed=seed) for sample in samples], noise)

    def levels(self, samples: Sequence[FlowSample], sigmas: list[float], noise: list[Tensor]) -> SigmaDraws:
        """Returns the `SigmaDraws` of samples with these noise levels and noise."""
        import torch

        bins = [min(int(sigma * NOISE_BINS), NOISE_BINS - 1) for sigma in sigmas]
        clean = [sample.condition_frames for sample in samples]
        video, image = self.config.loss_scale, self.config.image_loss_scale or self.config.loss_scale
        share = self.weigh(samples) / len(samples)
        scales = [share * (image if is_image(sample) else video) for sample in samples]
        return SigmaDraws(
            noise=noise,
            timesteps=torch.tensor([TIMESTEP_SCALE * sigma for sigma in sigmas], dtype=torch.float32),
            bins=bins,
            bin_rows=torch.tensor(bins),
            sigmas=sigmas,
            condition_frames=clean,
            clean=torch.tensor(clean),
            scales=torch.tensor(scales, dtype=torch.float64),
        )

    def sigma(self, sample: FlowSample, *, seed: int) -> float:
        """Samples the noise level σ in [0, 1] of one sample."""
        from worldsmith.objectives.noise_schedule import sample_sigma

        distribution = self.config.image_distribution if is_image(sample) else self.config.video_distribution
        shift = self.shift_of(sample)
        return sample_sigma(distribution, shift, seed=seed, position=sample.position, within=self.within)

    def shift_of(self, sample: FlowSample) -> float:
        """Returns the noise level shift of one sample from the config, its resolution bucket and its latent size.

        Raises:
            ValueError: If the table of shifts has no entry for the resolution bucket.
        """
        image = is_image(sample)
        own = image and self.config.shift_image is not None
        name, shift = ("shift_image", self.config.shift_image) if own else ("shift", self.config.shift)
        if not isinstance(shift, dict):
            return float(shift)  # type: ignore[arg-type]
        base = shift.get(DYNAMIC_KEYS["image" if image else "video"])
        if base is not None:
            return math.sqrt(math.prod(sample.latent_shape) / base)
        return tier_shift(name, shift, sample.resolution)

    def inputs(self, latents: Sequence[Tensor], draws: SigmaDraws) -> tuple[list[Tensor], Tensor]:
        """Returns the noisy latents of each sample, float32 [C, t, h, w], and the timesteps 1000·σ, float32 [n]."""
        parts = zip(latents, draws.noise, draws.sigmas, draws.condition_frames, strict=True)
        return [noisy_input(*part) for part in parts], draws.timesteps

    def losses(self, answers: Sequence[Tensor], latents: Sequence[Tensor], draws: SigmaDraws) -> Tensor:
        """Returns the loss of each sample, float32 [n], from the predicted velocities `answers` of the network."""
        targets = [velocity_target(x0, noise) for x0, noise in zip(latents, draws.noise, strict=True)]
        return per_sample_losses(
            answers,
            targets,
            draws.condition_frames,
            clean=draws.clean,
            normalize_by_active=self.config.normalize_loss_by_active,
            allow_clean=self.allows_clean_samples,
        )

    def weigh(self, samples: Sequence[FlowSample]) -> float:
        """Returns the weight of a batch in the mean loss of its step: its number of samples.

        The weight is 1 if `sample_level_loss_averaging` is False.
        """
        return len(samples) if self.config.sample_level_loss_averaging else 1

    def add_up(self, losses: Tensor, draws: SigmaDraws, *, tokens: int) -> BatchLoss:
        """Returns the weighted sum of a batch's losses, with metrics to log.

        The sum is in float64, so that a weight reaches the gradient with a single rounding. The metric "loss" is the
        loss without the loss scales; "loss_by_noise" is the same for ten ranges of σ.

        Args:
            losses: Loss of each sample [n], from the method `losses`.
            draws: Noise levels from `draw`.
            tokens: Number of tokens of the batch.
        """
        exact, count = losses.double(), len(draws)
        return BatchLoss(
            sum=(exact * draws.scales).sum(),
            samples=count,
            tokens=tokens,
            metrics={"loss": (exact.detach().sum(), count), **sum_by_noise(exact.detach(), draws)},
        )


def noisy_input(latents: Tensor, noise: Tensor, sigma: float, condition_frames: int = 0) -> Tensor:
    """Returns noisy latents (1-σ)·latents + σ·noise in float32; conditioning frames stay equal to `latents`.

    Args:
        latents: Clean latents [C, t, h, w].
        noise: Standard normal noise, float32 [C, t, h, w].
        sigma: Noise level σ in [0, 1].
        condition_frames: Number of latent frames at the beginning that stay clean.
    """
    import torch

    clean = latents.float()
    noisy = torch.lerp(clean, noise, sigma) if condition_frames == 0 else clean.clone()
    if condition_frames:
        noisy[:, condition_frames:] = torch.lerp(clean[:, condition_frames:], noise[:, condition_frames:], sigma)
    return noisy


def velocity_target(latents: Tensor, noise: Tensor) -> Tensor:
    """Returns the target velocity, noise minus clean latents, in float32."""
    return noise - latents.float()


def per_sample_losses(
    velocities: Sequence[Tensor],
    targets: Sequence[Tensor],
    condition_frames: Sequence[int],
    *,
    clean: Tensor | None = None,
    normalize_by_active: bool = False,
    allow_clean: bool = False,
) -> Tensor:
    """Computes the mean squared velocity error of each sample; samples of equal shape are reduced together, for speed.

    Args:
        velocities: Predicted velocities, one [C, t, h, w] per sample.
        targets: Target velocities in the same shapes.
        condition_frames: Number of clean latent frames of each sample; their error counts as zero.
        clean: `condition_frames` as int64 [n] on the device of the targets; None: it is copied to that device here.
        normalize_by_active: Whether the mean is over the noisy frames only. False: over all elements.
        allow_clean: Whether samples without noisy frames are allowed; their loss is 0.

    Returns:
        Losses, float32 [n].

    Raises:
        ValueError: If lengths or shapes differ, or a sample has no noisy frame although `allow_clean` is False.
    """
    import torch

    if not len(velocities) == len(targets) == len(condition_frames):
        raise ValueError(
            f"expected one velocity, target and number of conditioning frames per sample, found {len(velocities)}, "
            f"{len(targets)} and {len(condition_frames)}"
        )
    groups: dict[torch.Size, list[int]] = {}
    for index, (velocity, target, frames) in enumerate(zip(velocities, targets, condition_frames)):
        if velocity.shape != target.shape:
            raise ValueError(
                f"sample {index}: velocity {tuple(velocity.shape)} and target {tuple(target.shape)} differ"
            )
        if not 0 <= frames < target.shape[1] + allow_clean:
            raise ValueError(
                f"sample {index}: {frames} conditioning frames of {target.shape[1]} latent frames; at least one "
                "frame must be predicted"
            )
        groups.setdefault(target.shape, []).append(index)
    clean = torch.tensor(condition_frames, device=targets[0].device) if clean is None else clean
    rows = clean.unbind()
    losses = [
        group_losses(
            torch.stack([velocities[i] for i in group]),
            torch.stack([targets[i] for i in group]),
            torch.stack([rows[i] for i in group]) if any(condition_frames[i] for i in group) else None,
            normalize_by_active,
        )
        for group in groups.values()
    ]
    if len(losses) == 1:
        return losses[0]
    order = [index for group in groups.values() for index in group]
    found = dict(zip(order, torch.cat(losses).unbind()))
    return torch.stack([found[index] for index in range(len(order))])


def group_losses(velocity: Tensor, target: Tensor, clean: Tensor | None, normalize_by_active: bool) -> Tensor:
    """Returns the losses, float32 [n], of samples of equal shape.

    Args:
        velocity: Predicted velocities [n, C, t, h, w].
        target: Target velocities in the same shape.
        clean: Number of clean latent frames of each sample, int64 [n]; their error counts as zero. None: no sample has
            clean frames.
        normalize_by_active: Whether the mean is over the noisy frames only. False: over all elements.
    """
    import torch

    frame_errors = (velocity.float() - target.float()).square().mean(dim=(1, 3, 4))
    if clean is None:
        return frame_errors.mean(dim=1)
    num_frames = target.shape[2]
    active = torch.arange(num_frames, device=target.device) >= clean[:, None]
    total = torch.where(active, frame_errors, 0.0).sum(dim=1)
    return total / ((num_frames - clean).clamp(min=1) if normalize_by_active else num_frames)


def is_image(sample: FlowSample) -> bool:
    return sample.num_frames == 1


def tier_shift(name: str, table: dict[str, int | float], tier: str) -> float:
    """Returns the shift of the resolution bucket `tier` in `table`; raises WrongValueError if it has no entry.

    Args:
        name: Config field of the table, for messages.
        table: Resolution bucket -> shift.
        tier: Resolution bucket, such as "480".
    """
    if tier not in table:
        raise WrongValueError(
            {f"objective.{name}": table},
            why=f"the table has no entry for the resolution bucket '{tier}' of the data",
            remedy=f"add '{tier}' to the table, set objective.{name} to one number for all resolution buckets, "
            "or use data whose bucket is in the table",
        )
    return float(table[tier])


def check_shift(name: str, shift: Shift) -> None:
    """Raises WrongValueError if `shift`, value of the config field `name`, is an empty table or has an unknown key."""
    if not isinstance(shift, dict):
        return
    if not shift:
        remedy = "set a number, or one number per resolution bucket"
        raise WrongValueError({name: shift}, why="an empty table", remedy=remedy)
    for key in shift:
        if not key.isdigit() and key not in DYNAMIC_KEYS.values():
            dynamic = ", ".join(DYNAMIC_KEYS.values())
            why = f"the key '{key}' is neither a resolution bucket such as \"256\" nor one of {dynamic}"
            raise WrongValueError({name: shift}, why=why)
