"""Interleaved three-axis rotary positions (mRoPE): position ids of text and video, and their cos/sin tables.

Positions are above 15000 and fractional, so ids and angles are float32 for any precision of the network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.models.video_model import ActionLayout


class Rotary(NamedTuple):
    """cos and sin of every token's angles, each [N, 1, head_dim] (the middle axis broadcasts over heads)."""

    cos: Tensor
    sin: Tensor

    def to(self, dtype: torch.dtype) -> Rotary:
        return Rotary(self.cos.to(dtype), self.sin.to(dtype))


def text_positions(lengths: Sequence[int]) -> Tensor:
    """Returns the positions of text tokens, float32 [3, sum(lengths)]: on all three axes 0, 1, … within each text."""
    return count_within(lengths).float().expand(3, -1)


def video_positions(
    grids: Sequence[tuple[int, int, int]],
    text_lengths: Sequence[int],
    fps: Sequence[float | None],
    config: NetworkConfig,
) -> Tensor:
    """Computes the positions of each sample's (t, rows, columns) token grid after its text.

    Latent frame i is at time text_length + margin + i * base_fps / fps, where margin is the config field
    `unified_3d_mrope_temporal_modality_margin`. Rows and columns count from 0, or from text_length + margin if
    `unified_3d_mrope_reset_spatial_ids` is false.

    Args:
        grids: Token grid of each sample.
        text_lengths: Number of text tokens of each sample.
        fps: Frames per second of each sample; None: latent frames are 1 apart, as if `enable_fps_modulation` is false.
        config: Config of the network.

    Returns:
        float32 [3, tokens of all grids].
    """
    sizes = torch.tensor([math.prod(grid) for grid in grids])

    def per_token(values: Sequence[float], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype).repeat_interleave(sizes)

    rows, columns = per_token([grid[1] for grid in grids]), per_token([grid[2] for grid in grids])
    index = count_within(sizes)
    t, h, w = index // (rows * columns), index // columns % rows, index % columns

    # Rates are exact, as in diffusers; NVIDIA's own trainer rounds them to bfloat16 (23.976 is 24 there), which moves
    # the last latent frame of 189 by 0.05 positions. This order of float32 operations fixes the rounding near 15000,
    # and with it the rotary angles.
    base_rate = config.base_fps / config.temporal_compression_factor  # latent frames per second
    rates = [
        base_rate if value is None or not config.enable_fps_modulation else value / config.temporal_compression_factor
        for value in fps
    ]
    offset = per_token(text_lengths, torch.float32) + config.unified_3d_mrope_temporal_modality_margin
    t = t / per_token(rates, torch.float32) * base_rate + offset
    spatial = 0.0 if config.unified_3d_mrope_reset_spatial_ids else offset
    return torch.stack([t, h + spatial, w + spatial])


def action_positions(actions: ActionLayout, text_length: int, config: NetworkConfig) -> Tensor:
    """Computes the positions of the robot actions of a sample, float32 [3, rows].

    Row i is at time text_length + margin + (i + offset) * base_fps / (temporal_compression_factor * fps), so a row has
    the time of the latent frame to which it leads. Its height and width are those of the first latent.

    Args:
        actions: Layout of the robot actions.
        text_length: Number of text tokens of the sample.
        config: Config of the network.
    """
    base_rate = config.base_fps / config.temporal_compression_factor
    rate = actions.fps if config.enable_fps_modulation else base_rate
    start = text_length + config.unified_3d_mrope_temporal_modality_margin
    t = (torch.arange(actions.rows, dtype=torch.float32) + actions.offset) / rate * base_rate + start
    spatial = torch.full_like(t, 0.0 if config.unified_3d_mrope_reset_spatial_ids else float(start))
    return torch.stack([t, spatial, spatial])


def count_within(lengths: Sequence[int] | Tensor) -> Tensor:
    """Returns 0, 1, …, length - 1 for every length, concatenated; int64 [sum(lengths)]."""
    lengths = torch.as_tensor(lengths)
    ends = lengths.cumsum(0)
    return torch.arange(int(ends[-1])) - (ends - lengths).repeat_interleave(lengths)


def rotary_tables(positions: Tensor, head_dim: int, theta: float, mrope_section: Sequence[int]) -> Rotary:
    """Computes float32 cos/sin tables of positions [3, N].

    Frequency j is theta^(-2j/head_dim). Time uses all frequencies except 1, 4, … (height) and 2, 5, … (width). The two
    halves of head_dim share their angles.

    Args:
        positions: Positions along time, height and width, [3, N].
        head_dim: Channels per attention head.
        theta: Base of the frequencies.
        mrope_section: Number of frequencies for time, height and width.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    angles = positions.float()[:, :, None] * (1.0 / theta**exponents)
    merged = angles[0].clone()
    for axis in (1, 2):
        slots = slice(axis, 3 * mrope_section[axis], 3)
        merged[:, slots] = angles[axis][:, slots]
    full = torch.cat((merged, merged), dim=-1)[:, None]
    return Rotary(full.cos(), full.sin())


def apply_rotary(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotates each token of x [N, heads, head_dim] by its angles (rotate-half pairing); returns the same shape."""
    first, second = x.chunk(2, dim=-1)
    return x * rotary.cos + torch.cat((-second, first), dim=-1) * rotary.sin
