"""`DummyData`: batches and encoders of a task in a plan, which reads no data and encodes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from worldsmith.config.errors import UserError
from worldsmith.data.assumed_batches import AssumedBatch


class DummyData:
    """Dummy batches for a task, and its encoders while samples count as cached (`worldsmith plan`)."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def make_batch(self, *, fill: float = 1.0, encoded: bool = True) -> AssumedBatch:
        """Builds a dummy batch without any data.

        Args:
            fill: size of the batch as a fraction of the limits of the run.
            encoded: whether the latents and embeddings come from the cache.

        Raises:
            UserError: the family does not support it.
        """
        raise UserError(f"{type(self.task).__name__} makes no dummy batches: give the plan the data of the run")

    def fill_sample(self, sample: Any, *, encoded: bool = True) -> Any:
        """Fills a sample that was read without decoding with constant contents. `encoded`: as in `make_batch`."""
        return sample

    def sample_bytes(self, sample: Any) -> tuple[int, int]:
        """Bytes of a sample in host RAM, as its loader returns it, and on disk, in the cache."""
        return 0, 0

    def assume_cached(self) -> None:
        """Treats every sample as cached from now on: no file is read, and the encoders are freed."""

    def forget_cached(self) -> None:
        """Reverts `assume_cached`."""

    def encoder_size(self, sample: Any) -> Any:
        """A value that is equal for samples with the same encoding cost."""
        return sample.position

    def encoder_tensors(self) -> Iterable[Any]:
        """Weights of the encoders that are loaded."""
        return ()

    def caption_tensors(self) -> Iterable[Any]:
        """The `encoder_tensors` of the text encoder."""
        return ()
