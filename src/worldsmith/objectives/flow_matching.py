"""The algebra of rectified flow on latents [C, t, h, w]: x_t = σ·ε + (1-σ)·x0, velocity ε - x0, masked squared error.

The first `condition_frames` latent frames of a sample are given to the network clean: they are x0 and have no loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def noisy_input(latents: Tensor, noise: Tensor, sigma: float, condition_frames: int = 0) -> Tensor:
    """x_t in float32; the leading condition frames are exactly `latents`."""
    clean = latents.float()
    noisy = torch.lerp(clean, noise, sigma) if condition_frames == 0 else clean.clone()
    if condition_frames:
        noisy[:, condition_frames:] = torch.lerp(clean[:, condition_frames:], noise[:, condition_frames:], sigma)
    return noisy


def velocity_target(latents: Tensor, noise: Tensor) -> Tensor:
    """ε - x0 in float32."""
    return noise - latents.float()


def per_sample_losses(
    velocities: Sequence[Tensor],
    targets: Sequence[Tensor],
    condition_frames: Sequence[int],
    *,
    normalize_by_active: bool = False,
) -> Tensor:
    """Squared velocity error of each sample, float32 [n].

    By default the mean over all elements, condition frames counted as zero error; with `normalize_by_active` the mean
    over the noisy frames alone. Samples of one shape are reduced together: a pack of many small clips is cheap.
    """
    if not len(velocities) == len(targets) == len(condition_frames):
        raise ValueError(
            f"one velocity, target and condition frame count is needed for each sample, "
            f"found {len(velocities)}, {len(targets)} and {len(condition_frames)}"
        )
    groups: dict[torch.Size, list[int]] = {}
    for index, (velocity, target, clean) in enumerate(zip(velocities, targets, condition_frames)):
        if velocity.shape != target.shape:
            raise ValueError(
                f"sample {index}: velocity {tuple(velocity.shape)} and target {tuple(target.shape)} differ"
            )
        if not 0 <= clean < target.shape[1]:
            raise ValueError(
                f"sample {index}: {clean} condition frames of {target.shape[1]} latent frames; "
                f"at least one frame must be left to learn"
            )
        groups.setdefault(target.shape, []).append(index)
    losses = [
        group_losses(
            torch.stack([velocities[i] for i in group]),
            torch.stack([targets[i] for i in group]),
            [condition_frames[i] for i in group],
            normalize_by_active,
        )
        for group in groups.values()
    ]
    if len(losses) == 1:
        return losses[0]
    order = [index for group in groups.values() for index in group]
    place = torch.empty(len(order), dtype=torch.long)
    place[torch.tensor(order)] = torch.arange(len(order))
    return torch.cat(losses)[place.to(losses[0].device)]


def group_losses(velocity: Tensor, target: Tensor, condition_frames: list[int], normalize_by_active: bool) -> Tensor:
    """Losses [n] of samples that share one shape, stacked to [n, C, t, h, w]."""
    frame_errors = (velocity.float() - target.float()).square().mean(dim=(1, 3, 4))
    if not any(condition_frames):
        return frame_errors.mean(dim=1)
    num_frames = target.shape[2]
    clean = torch.tensor(condition_frames, device=target.device)
    active = torch.arange(num_frames, device=target.device) >= clean[:, None]
    total = torch.where(active, frame_errors, 0.0).sum(dim=1)
    return total / ((num_frames - clean) if normalize_by_active else num_frames)
