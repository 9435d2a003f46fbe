"""From pixels to the rows that a vision tower takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def patchify(frames: np.ndarray, *, patch: int, merge: int, temporal: int) -> np.ndarray:
    """[T, 3, H, W] to [t * h * w, 3 * temporal * patch * patch], with t, h, w in patches; the last frame is repeated.

    Rows: time, then blocks of `merge` x `merge` patches that become one token, then the patches of a block. Columns:
    channel, frame, row, column.
    """
    if extra := -len(frames) % temporal:
        frames = np.concatenate([frames, np.repeat(frames[-1:], extra, axis=0)])
    count, channels, height, width = frames.shape
    rows, columns = height // patch, width // patch
    split = frames.reshape(
        count // temporal, temporal, channels, rows // merge, merge, patch, columns // merge, merge, patch
    )
    ordered = split.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(count // temporal * rows * columns, channels * temporal * patch * patch)


def normalize(patches: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 rows of `patchify` as float32: (x / 255 - mean) / std for each channel, on the patches' device."""
    import torch

    values = patches.to(torch.float32).div_(255).view(len(patches), len(mean), -1)
    centre, spread = (torch.tensor(v, dtype=torch.float32, device=patches.device)[:, None] for v in (mean, std))
    return values.sub_(centre).div_(spread).view(len(patches), -1)


def unpatchify(rows: np.ndarray, grid: Sequence[int], *, patch: int, merge: int, temporal: int) -> np.ndarray:
    """The frames [T, 3, H, W] of which `patchify` made the rows; T with the repeated last one."""
    times, height, width = grid
    split = rows.reshape(times, height // merge, width // merge, merge, merge, -1, temporal, patch, patch)
    return split.transpose(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(times * temporal, -1, height * patch, width * patch)
