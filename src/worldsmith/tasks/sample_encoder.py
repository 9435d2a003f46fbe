"""`SampleEncoder`: encodes the samples of a task ahead of its run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class SampleEncoder(ABC):
    """The frozen encoders of a task, and the cache that they fill (`worldsmith encode`)."""

    def __init__(self, task: Any) -> None:
        self.task = task

    @abstractmethod
    def require_cache(self) -> Path:
        """Folder of the cache of encoded samples. Raises UserError if the run has none."""

    @property
    @abstractmethod
    def cell_bytes(self) -> int:
        """Bytes in the cache per latent position, over all channels."""

    @abstractmethod
    def encode(self, sample: Any) -> bool:
        """Encodes a sample into the cache, as the loss of the task does. False: it was in the cache already."""

    def keep_all_samples(self) -> None:  # noqa: B027 (nothing by default)
        """Makes the loader return every sample, also those that a run skips at random."""

    def defer_captions(self) -> None:  # noqa: B027 (nothing by default)
        """Makes `encode` leave captions to `encode_captions`, so that only one encoder is in memory."""

    def encode_captions(self) -> None:  # noqa: B027 (nothing by default)
        """Encodes the captions that `encode` left, without the encoder of clips."""

    def compile(self, tiers: Sequence[str]) -> None:
        """Compiles the encoder of raw samples for all sizes of the resolution buckets `tiers`."""
        raise NotImplementedError(f"{type(self).__name__} cannot be compiled")
