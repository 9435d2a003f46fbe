"""How videos, uint8 [3, T, H, W], move from frame to frame: dense motion by block matching."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from worldsmith.evaluation.image_quality import luma

BLOCK, REACH, LARGEST = 8, 8, 256
"""Side of a block and the farthest match, in pixels of frames whose short side is below 2·LARGEST after shrinking."""
NOTICED = 0.5
"""A motion counts if its match is better than that of none by so many grey levels: coding noise moves nothing."""


@dataclass(frozen=True, slots=True)
class Motion:
    """Of the blocks of a video, from each frame to the next."""

    vectors: Tensor
    """(down, right) in pixels a frame, float32 [T - 1, rows, columns, 2]."""
    residual: Tensor
    """Mean absolute difference of a block and its match, in grey levels 0..255, float32 [T - 1, rows, columns]."""

    @property
    def magnitude(self) -> float:
        """Mean length of the vectors, pixels a frame."""
        return float(self.vectors.norm(dim=-1).mean())

    @property
    def flicker(self) -> float:
        """What motion does not explain, grey levels: the warping error of Lai et al. 2018 with the motion of blocks."""
        return float(self.residual.mean())

    def error(self, real: Motion) -> float:
        """Mean endpoint error (Baker et al. 2011) against the motion of a real video, pixels a frame."""
        return float((self.vectors - real.vectors).norm(dim=-1).mean())


def measure_motion(video: Tensor) -> Motion | None:
    """Full-search block matching of the brightness (Jain and Jain 1981), the shortest of equal matches.

    Blocks whose search stays within the frame are measured; matches are whole pixels. Frames of 512 pixels and more are
    first shrunk by a whole factor. None for a single frame, and for frames without room for a block and its search.
    """
    frames = luma(video)
    factor = max(1, min(frames.shape[1:]) // LARGEST)
    frames = avg_pool2d(frames[:, None], factor)[:, 0]
    reach = min(REACH, min(frames.shape[1:]) // 4)
    rows, columns = ((side - 2 * reach) // BLOCK for side in frames.shape[1:])
    if len(frames) < 2 or reach < 1 or rows < 1 or columns < 1:
        return None
    height, width = rows * BLOCK, columns * BLOCK
    now = frames[1:, reach : reach + height, reach : reach + width]
    steps = sorted(product(range(-reach, reach + 1), repeat=2), key=lambda step: (step[0] ** 2 + step[1] ** 2, step))
    for number, (down, right) in enumerate(steps):
        top, left = reach - down, reach - right
        before = frames[:-1, top : top + height, left : left + width]
        cost = avg_pool2d((now - before).abs()[:, None], BLOCK)[:, 0]
        if number == 0:
            still, best, chosen = cost, cost, torch.zeros_like(cost, dtype=torch.long)
        chosen = torch.where(cost < best, number, chosen)
        best = torch.minimum(cost, best)
    moves = still - best > NOTICED
    chosen = torch.where(moves, chosen, 0)
    vectors = torch.tensor(steps, dtype=torch.float32, device=frames.device)[chosen] * factor
    return Motion(vectors, torch.where(moves, best, still))
