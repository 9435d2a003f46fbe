"""All ranks of a run once more, over gloo, so that a thread can meet its peers while the main thread trains."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from worldsmith.distributed.world import World

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")
PATIENCE = timedelta(hours=2)
"""How long a rank waits for the others; writing and syncing to a slow disk takes its time."""


class PeerError(Exception):
    """Work of several ranks failed; `errors` are those of the ranks that it failed on."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        super().__init__("; ".join(f"rank {rank}: {type(e).__name__}: {e}" for rank, e in errors.items()))
        self.errors = list(errors.values())


class SideGroup:
    """A process group of its own for everything that is agreed beside the training. All ranks build it together."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.process_group: ProcessGroup | None = None
        if world.size > 1:
            import torch.distributed as dist

            self.process_group = dist.new_group(backend="gloo", timeout=PATIENCE)

    def run(self, work: Callable[[], T]) -> list[T]:
        """Calls `work` on every rank and returns all values in rank order, on every rank.

        When it fails anywhere, it fails everywhere: with the error itself on a single process, else with PeerError.
        """
        if self.process_group is None:
            return [work()]
        import torch.distributed as dist

        outcome: tuple[Any, BaseException | None]
        try:
            outcome = (work(), None)
        except Exception as error:
            outcome = (None, portable(error))
        outcomes: list[Any] = [None] * self.world.size
        dist.all_gather_object(outcomes, outcome, group=self.process_group)
        errors = {rank: error for rank, (_, error) in enumerate(outcomes) if error is not None}
        if errors:
            raise PeerError(errors) from outcome[1]
        return [value for value, _ in outcomes]

    def run_on_main(self, work: Callable[[], T]) -> T | None:
        """Calls `work` on rank 0 only; returns its value there and None elsewhere. Fails like `run`."""
        return self.run(lambda: work() if self.world.is_main else None)[self.world.rank]


def portable(error: Exception) -> Exception:
    """The error in a form that can be sent to other ranks."""
    try:
        return pickle.loads(pickle.dumps(error)) and error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
