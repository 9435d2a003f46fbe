"""What the loader of conversations hands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldsmith.data.stream.maker import ThroughPipe

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""The label of a token that is not supervised."""


@dataclass(frozen=True, slots=True)
class ChatSample(ThroughPipe):
    """One conversation as ids and patches, complete. The sequence tensors are int64 [N].

    `labels` are not shifted: the label of a token is its own id, or `IGNORED`. Patches are uint8, before the
    normalisation, as rows of 3·frames·side·side values (1536 of Qwen3-VL, 1176 of Qwen2.5-VL); all images come in the
    order of their placeholders, all videos, too.
    """

    key: str
    position: int
    """Position in the endless stream of samples (epoch * len(dataset) + i)."""
    num_tokens: int
    """N, what counts against the cap of a pack."""
    input_ids: Tensor
    labels: Tensor
    token_types: Tensor
    """0 text, 1 image, 2 video placeholder."""
    image_patches: Tensor | None = None
    """uint8 [patches, values]."""
    image_grids: Tensor | None = None
    """int64 [images, 3]: frames (t), rows, columns, in patches."""
    video_patches: Tensor | None = None
    video_grids: Tensor | None = None
    """int64 [videos, 3]."""
    video_seconds: Tensor | None = None
    """float32 [videos]: from one time of a grid to the next."""

    @property
    def num_supervised(self) -> int:
        """Tokens that count in the loss: a token is predicted from the one before it, so the first never counts."""
        return int((self.labels[1:] != IGNORED).sum())
