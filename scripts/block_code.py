"""A linear code of video: 48 numbers for every 16x16 pixels of 4 frames, and for every 16x16 of the first frame.

The best linear code of given clips (their principal components), as a teacher for a VAE that starts from nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

SIDE, FRAMES, CHANNELS = 16, 4, 48
WHITENING = 0.7


def to_blocks(video: Tensor, frames: int, side: int = SIDE) -> Tensor:
    """[B, 3, T, H, W] to [B, T / frames, H / side, W / side, values of a block]."""
    b, c, t, h, w = video.shape
    cut = video.reshape(b, c, t // frames, frames, h // side, side, w // side, side)
    return cut.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4)


class Basis:
    """An orthonormal basis [values of a block, channels] around a mean, for blocks of one size."""

    def __init__(self, video: Tensor, frames: int, side: int, channels: int) -> None:
        """The principal components of the blocks of [B, 3, T, H, W]."""
        self.frames, self.side = frames, side
        blocks = to_blocks(video, frames, side).flatten(0, 3)
        self.mean = blocks.mean(0)
        centred = blocks - self.mean
        values, vectors = torch.linalg.eigh(centred.T @ centred / len(blocks))
        self.vectors = vectors[:, -channels:].flip(1).contiguous()
        self.std = values[-channels:].flip(0).clamp_min(1e-8).sqrt()

    def take_order_of(self, other: Basis) -> None:
        """Orders and signs the vectors like those of `other` that look the same in every frame."""
        repeated = self.vectors.view(3, 1, -1, self.vectors.shape[1]).expand(-1, other.frames, -1, -1).flatten(0, 2)
        alike = repeated.T @ other.vectors
        order, signs = torch.zeros(alike.shape[1], dtype=torch.long), torch.ones(alike.shape[1])
        left = alike.abs()
        for _ in range(alike.shape[1]):
            mine, theirs = divmod(int(left.argmax()), left.shape[1])
            order[theirs], signs[theirs] = mine, 1.0 if alike[mine, theirs] >= 0 else -1.0
            left[mine], left[:, theirs] = -1.0, -1.0
        self.vectors, self.std = self.vectors[:, order] * signs, self.std[order]

    def analyse(self, video: Tensor) -> Tensor:
        """Coefficients [B, channels, t, h, w]."""
        return ((to_blocks(video, self.frames, self.side) - self.mean) @ self.vectors).permute(0, 4, 1, 2, 3)


class BlockCode:
    """One basis for the first frame, which stands alone, and one for the groups of frames after it."""

    def __init__(self, video: Tensor, frames: int = FRAMES, side: int = SIDE, channels: int = CHANNELS) -> None:
        self.group = Basis(video[:, :, 1:], frames, side, channels)
        self.single = Basis(video[:, :, :1], 1, side, channels)
        self.single.take_order_of(self.group)
        self.scales = [1 / (b.std.max() ** (1 - WHITENING) * b.std**WHITENING) for b in (self.single, self.group)]

    def coefficients(self, video: Tensor) -> Tensor:
        return torch.cat([self.single.analyse(video[:, :, :1]), self.group.analyse(video[:, :, 1:])], 2)

    def encode(self, video: Tensor) -> Tensor:
        """Coefficients [B, channels, t, h, w] whose sizes differ less than their importance."""
        parts = [self.single.analyse(video[:, :, :1]), self.group.analyse(video[:, :, 1:])]
        return torch.cat([part * scale.view(-1, 1, 1, 1) for part, scale in zip(parts, self.scales)], 2)
