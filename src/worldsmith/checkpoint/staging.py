"""A copy of the run's tensors in memory, from which a thread writes while the training changes the originals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Stager:
    """Copies tensors (also sharded ones) to main memory, into buffers that are used again for every save.

    On CUDA the buffers are pinned, all copies are queued, and `stage` returns when they have arrived.
    """

    def __init__(self, device: str) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        cuda = device.startswith("cuda")
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=cuda,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=cuda,
            )
        )

    def stage(self, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The same parts with tensors of their own. The buffers belong to the newest copy."""
        staged: Any = self._stager.stage({name: dict(state) for name, state in parts.items()})
        return dict(staged)
