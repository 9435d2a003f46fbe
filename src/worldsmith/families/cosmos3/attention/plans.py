"""Plans `latent_attention` for a pack: dense, restricted to neighborhoods, or by FlexAttention.

Neighborhoods run on NATTEN's kernels if these are available, else as exact masked attention. The masked form uses that
a neighborhood is independent along each axis: frames that attend to the same frames make one segment with only those
frames as keys, so a window in time costs less than dense attention, and the mask of a segment covers height and width,
one for all segments of the same shape.

Definition of a neighborhood: NATTEN, https://natten.org (operations `na1d`, `na2d`, `na3d`), and "Generalized
Neighborhood Attention", https://arxiv.org/abs/2504.16922, for strides.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from worldsmith.config.errors import UserError
from worldsmith.families.cosmos3.attention.kernels import NattenPlan, NattenSegment, natten_available, plan_flex
from worldsmith.families.cosmos3.attention.modes import AttentionModes, AxisWindow, Grid, Windows
from worldsmith.families.cosmos3.attention.packed import LatentPlan, SegmentPlan, plan_segments

logger = logging.getLogger(__name__)

MASK_ENTRIES = 2**24
"""Max mask entries of a segment; larger segments are split by frames."""


def plan_latents(
    modes: AttentionModes,
    grids: Sequence[Grid],
    text_lengths: Sequence[int],
    device: torch.device | str = "cpu",
    action_rows: Sequence[int] = (),
) -> tuple[LatentPlan, ...]:
    """Builds, on the CPU, the plans for attention of the latents of packed samples: one plan per attention pattern.

    Robot actions attend like latents, and are attended to like latents; only dense attention includes them.

    Args:
        modes: Attention patterns of the network.
        grids: Grid (t, rows, columns) of the latent tokens of each sample.
        text_lengths: Number of text tokens of each sample.
        device: Device of the network, which decides between attention kernels.
        action_rows: Number of robot action tokens of each sample, after its latent tokens; (): no sample has any.

    Returns:
        Plans for `latent_attention`, in the order of `modes.patterns`.

    Raises:
        UserError: If a neighborhood does not fit a grid, or excludes robot actions.
    """
    device = torch.device(device)
    plans: list[LatentPlan] = []
    dense = None
    for pattern in modes.patterns:
        windows = [pattern.windows(grid) for grid in grids]
        if all(own is None for own in windows):
            dense = dense or plan_dense(modes.implementation, grids, text_lengths, device, action_rows)
            plans.append(dense)
        elif any(action_rows):
            raise UserError(
                f"{pattern.where}: samples with robot actions require dense attention, since an action has no place "
                "in the grid of the latents. Use joint_attn_implementation = 'two_way'"
            )
        elif natten_chosen(device):
            plans.append(plan_natten(windows, grids, text_lengths))
        else:
            plans.append(plan_masked(windows, grids, text_lengths))
    return tuple(plans)


@functools.cache
def natten_chosen(device: torch.device) -> bool:
    """Returns whether neighborhoods are computed by NATTEN on this device; logs the choice once per device."""
    if natten_available(device):
        logger.info("attention: neighborhoods use NATTEN's kernels")
        return True
    missing = "; NATTEN's kernels are not installed (pip install natten)" if device.type == "cuda" else ""
    logger.info("attention: neighborhoods use masked dense attention on %s, exact but slower%s", device, missing)
    return False


def plan_dense(
    implementation: str,
    grids: Sequence[Grid],
    text_lengths: Sequence[int],
    device: torch.device,
    action_rows: Sequence[int] = (),
) -> LatentPlan:
    """Plans dense attention: latents and robot actions attend to all text, latents and actions of their sample.

    Args:
        implementation: "two_way", "three_way" or "flex". "flex" on CUDA gives a `FlexPlan`, everything else a
            `SegmentPlan`.
        grids: Grid (t, rows, columns) of the latent tokens of each sample.
        text_lengths: Number of text tokens of each sample.
        device: Device of the network; the tensors of a `FlexPlan` are on it.
        action_rows: Number of robot action tokens of each sample; (): no sample has any.
    """
    gen_lengths = tuple(math.prod(grid) + rows for grid, rows in zip(grids, action_rows or (0,) * len(grids)))
    joined = tuple(text_lengths), gen_lengths
    if implementation == "flex" and device.type == "cuda":
        return plan_flex(joined, device=device)
    key_lengths = [text + latents for text, latents in zip(*joined, strict=True)]
    return replace(plan_segments(gen_lengths, key_lengths, causal=False), joined=joined)


def plan_natten(windows: Sequence[Windows | None], grids: Sequence[Grid], text_lengths: Sequence[int]) -> NattenPlan:
    """Plans neighborhood attention with one NATTEN call per sample.

    NATTEN gets the token grid of the sample without axes of length 1.

    Args:
        windows: Attention windows of each sample; None: dense attention.
        grids: Grid (t, rows, columns) of the latent tokens of each sample.
        text_lengths: Number of text tokens of each sample.
    """
    segments = []
    for own, grid, latents, text in zip(windows, grids, *stream_rows(grids, text_lengths), strict=True):
        long = [axis for axis in range(3) if grid[axis] > 1]
        kept = () if own is None else tuple(own[axis] for axis in long)
        segments.append(NattenSegment(latents, text, tuple(grid[axis] for axis in long), kept))
    return NattenPlan(tuple(segments))


def plan_masked(windows: Sequence[Windows | None], grids: Sequence[Grid], text_lengths: Sequence[int]) -> SegmentPlan:
    """Plans neighborhood attention with masks: a segment is a group of frames that attend to the same frames.

    A segment has a mask only if the neighborhood restricts height or width.

    Args:
        windows: Attention windows of each sample; None: dense attention.
        grids: Grid (t, rows, columns) of the latent tokens of each sample.
        text_lengths: Number of text tokens of each sample.
    """
    queries: list[Tensor] = []
    keys: list[Tensor] = []
    masks: list[Tensor | None] = []
    make_mask = functools.cache(segment_mask)
    total_text = sum(text_lengths)
    for own, grid, latents, text in zip(windows, grids, *stream_rows(grids, text_lengths), strict=True):
        frames, tokens = grid[0], grid[1] * grid[2]
        rows = torch.arange(latents.start, latents.stop).view(frames, tokens)
        text_rows = torch.arange(text.start, text.stop)
        for query_frames, key_frames in [(list(range(frames)),) * 2] if own is None else frame_groups(own, frames):
            restricted = own is not None and not all(bool(m.all()) for m in spatial_masks(own, grid))
            entries = tokens * (len(text_rows) + len(key_frames) * tokens)
            step = max(1, MASK_ENTRIES // entries) if restricted else len(query_frames)
            for start in range(0, len(query_frames), step):
                part = query_frames[start : start + step]
                queries.append(rows[part].flatten())
                keys.append(torch.cat((text_rows, total_text + rows[key_frames].flatten())))
                masks.append(
                    make_mask(own, grid[1:], len(part), len(key_frames), len(text_rows)) if restricted else None
                )
    return plan_segments(
        [len(rows) for rows in queries],
        [len(rows) for rows in keys],
        torch.cat(keys),
        causal=False,
        query_rows=torch.cat(queries),
        masks=masks,
    )


def stream_rows(grids: Sequence[Grid], text_lengths: Sequence[int]) -> tuple[list[slice], list[slice]]:
    """Returns (slice of each sample in the latent tokens of all samples, slice of each sample in all text tokens)."""
    lengths = [frames * rows * columns for frames, rows, columns in grids], text_lengths
    latents, text = (
        [slice(end - length, end) for end, length in zip(accumulate(own), own, strict=True)] for own in lengths
    )
    return latents, text


def frame_groups(windows: Windows, frames: int) -> list[tuple[list[int], list[int]]]:
    """Groups the frames of a sample that attend to the same frames.

    Args:
        windows: Attention windows along time, height and width.
        frames: Number of frames.

    Returns:
        For each group the indices of its frames, and of the frames that they attend to; ordered by the first frame.
    """
    groups: dict[tuple[bool, ...], list[int]] = {}
    for frame, key_frames in enumerate(axis_mask(frames, windows[0]).tolist()):
        groups.setdefault(tuple(key_frames), []).append(frame)
    return [
        (query_frames, [key for key, one in enumerate(key_frames) if one])
        for key_frames, query_frames in groups.items()
    ]


def spatial_masks(windows: Windows, grid: Grid) -> tuple[Tensor, Tensor]:
    """Returns the masks of a neighborhood along height, bool [rows, rows], and along width, bool [columns, columns]."""
    return axis_mask(grid[1], windows[1]), axis_mask(grid[2], windows[2])


def segment_mask(windows: Windows, plane: tuple[int, int], query_frames: int, key_frames: int, text: int) -> Tensor:
    """Returns the mask of a segment, bool [queries, keys], True where a query attends to a key; text keys come first.

    Args:
        windows: Neighborhood along time, height and width.
        plane: (rows, columns) of a frame.
        query_frames: Number of query frames.
        key_frames: Number of frames that the queries attend to.
        text: Number of text tokens, which all queries attend to.
    """
    rows, columns = spatial_masks(windows, (1, *plane))
    frame = rows[:, None, :, None] & columns[None, :, None, :]
    latents = frame.flatten(2).flatten(0, 1).repeat(query_frames, key_frames)
    return torch.cat((latents.new_ones(len(latents), text), latents), dim=1)


def axis_mask(length: int, own: AxisWindow) -> Tensor:
    """Returns the exact mask of the window `own` along an axis: whether query i attends to key j, bool [i, j].

    - Dilation d splits the axis into d groups (position modulo d). A token attends only to tokens of its own group, and
      the rules below count positions inside a group.
    - `stride` consecutive queries share the window of their leader: the middle one (the right middle of an even
      number), or the last one if causal, at most the last token of the group.
    - A window of w positions starts w // 2 positions before the leader. At the borders it is moved inwards, not cut, so
      every query attends to exactly w positions.
    - A causal window ends at the leader and is cut at the left border. A query attends to the positions of this window
      up to its own.
    """
    position = torch.arange(length)
    group, index = position % own.dilation, position // own.dilation
    members = (length - group + own.dilation - 1) // own.dilation
    within = own.stride - 1 if own.causal else own.stride // 2
    leader = torch.minimum(index // own.stride * own.stride + within, members - 1)
    if own.causal:
        first, last = leader - own.window + 1, index
    else:
        first = torch.minimum((leader - own.window // 2).clamp(min=0), members - own.window)
        last = first + own.window - 1
    same_group = group[:, None] == group
    return same_group & (first[:, None] <= index) & (index <= last[:, None])
