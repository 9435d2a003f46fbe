"""Reading back the videos that were written."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import torch
from torch import Tensor


def read_mp4(path: str | Path) -> tuple[Tensor, float]:
    """All frames of a video as uint8 [3, T, H, W], and its frames per second."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        images = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        fps = float(stream.average_rate or stream.base_rate or 0)
    return torch.from_numpy(np.stack(images)).permute(3, 0, 1, 2).contiguous(), fps
