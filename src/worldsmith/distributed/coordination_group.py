"""A second group of all ranks for coordination outside of training, in a thread or another process."""

from __future__ import annotations

import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")
Kind = Literal["all_gather", "gather", "scatter"]
PATIENCE = timedelta(hours=2)
"""Timeout of collectives, which wait for other ranks: these may take long to write and sync to a slow disk."""
GONE = re.compile(r"(closed|reset) by peer|broken pipe|peer closed|remote (process exited|server shutdown)", re.I)
"""Matches the messages of gloo, NCCL and the store about a lost connection to another process."""


class PeerError(Exception):
    """Error that all ranks raise if an operation failed on at least one rank.

    Args:
        errors: Exception of each rank on which the operation failed, by rank.
    """

    def __init__(self, errors: dict[int, BaseException]) -> None:
        super().__init__(errors)
        self.errors = list(errors.values())
        for note in [note for error in self.errors for note in getattr(error, "__notes__", [])]:
            self.add_note(note)

    def __str__(self) -> str:
        return "; ".join(f"rank {rank}: {type(e).__name__}: {e}" for rank, e in self.args[0].items())


class Peers(ABC):
    """Base class of collectives on Python objects. All ranks must call the same methods in the same order.

    If a function that a method calls raises an exception on one rank, all ranks raise PeerError. In a run of one
    process, the exception itself is raised.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @abstractmethod
    def exchange(self, kind: Kind, payload: bytes | list[bytes] | None, error: Exception | None) -> Any:
        """Exchanges bytes between the ranks. If at least one rank passes an error, all ranks raise PeerError.

        Args:
            kind: "all_gather" returns all payloads on every rank; "gather" returns them on rank 0 and None elsewhere;
                "scatter" returns to each rank its item of the list of rank 0.
            payload: Pickled object; a list with one item per rank for "scatter" on rank 0; None: this rank sends no
                object.
            error: Exception that this rank has caught; None: the operation succeeded on this rank.
        """

    def run(self, work: Callable[[], T]) -> list[T]:
        """Calls `work` on every rank; returns the results of all ranks, which must be picklable, in rank order."""
        if self.size == 1:
            return [work()]
        payloads: list[bytes] = self._exchange("all_gather", lambda: pickle.dumps(work()))
        return [pickle.loads(payload) for payload in payloads]

    def run_on_main(self, work: Callable[[], object]) -> None:
        """Calls `work` on rank 0 only; the other ranks wait, and raise PeerError if it fails there. Collective."""

        def on_main() -> None:
            if self.is_main:
                work()

        self.run(on_main)

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Calls `work` on every rank; returns the results of all ranks in rank order on rank 0, [] on other ranks."""
        if self.size == 1:
            return [work()]
        payloads: list[bytes] | None = self._exchange("gather", lambda: pickle.dumps(work()))
        return [pickle.loads(payload) for payload in payloads or []]

    def scatter(self, work: Callable[[], list[T]]) -> T:
        """Calls `work` on rank 0 only, which must return a list of one value per rank; returns this rank's value."""
        if self.size == 1:
            return work()[0]
        dealt = self._exchange("scatter", lambda: [pickle.dumps(v) for v in work()] if self.is_main else None)
        return pickle.loads(dealt)  # type: ignore[no-any-return]

    def _exchange(self, kind: Kind, work: Callable[[], bytes | list[bytes] | None]) -> Any:
        payload, error = None, None
        try:
            payload = work()
        except Exception as raised:
            error = raised
        try:
            return self.exchange(kind, payload, portable(error))
        except PeerError as failure:
            raise failure from error


class SideGroup(Peers):
    """Collectives in a separate gloo process group, which a thread can use while the main thread trains.

    All ranks must create the object at the same time.

    Args:
        rank: Rank of this process.
        size: Number of ranks.
        patience: Timeout of each collective, a `timedelta`; the default of 2 hours allows for slow disks.
    """

    def __init__(self, rank: int, size: int, *, patience: timedelta = PATIENCE) -> None:
        super().__init__(rank, size)
        self._group: ProcessGroup | None = None
        if size > 1:
            import torch.distributed as dist

            self._group = dist.new_group(backend="gloo", timeout=patience)

    def exchange(self, kind: Kind, payload: bytes | list[bytes] | None, error: Exception | None) -> Any:
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, error, group=self._group)
        errors = {rank: error for rank, error in enumerate(values) if error is not None}
        if errors:
            raise PeerError(errors)
        if kind == "all_gather":
            dist.all_gather_object(values, payload, group=self._group)
            return values
        if kind == "gather":
            dist.gather_object(payload, values if self.is_main else None, dst=0, group=self._group)
            return values if self.is_main else None
        own: list[Any] = [None]
        dist.scatter_object_list(own, payload, src=0, group=self._group)  # type: ignore[arg-type]
        return own[0]


def portable(error: Exception | None) -> Exception | None:
    """Returns an exception that replaces `error` and can be pickled for other processes; None if `error` is None.

    An OSError in the exception chain replaces the exception, since chained exceptions are lost. Other exceptions get
    their traceback as a note. An exception that cannot be pickled is replaced by a RuntimeError or OSError with its
    text.
    """
    import traceback

    if error is None:
        return None
    system = next((cause for cause in causes(error) if isinstance(cause, OSError)), None)
    sent = system or error
    if system is None and not hasattr(error, "__notes__"):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(sent))
        return sent
    except Exception:
        kind = RuntimeError if system is None else OSError
        substitute = kind(f"{type(sent).__name__}: {sent}")
        for note in getattr(sent, "__notes__", []):
            substitute.add_note(note)
        return substitute


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an exception, its chained exceptions (recursively), and the exceptions of other ranks in a PeerError."""
    waiting, seen = [error], set()
    while waiting:
        cause = waiting.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        waiting += [chained for chained in (cause.__cause__, cause.__context__) if chained is not None]
        if isinstance(cause, PeerError):
            waiting += cause.errors


def lost_partner(error: BaseException) -> str | None:
    """Returns a message for users if `error` means that another process of the run has ended or cannot be reached.

    The result is None for other errors. PyTorch reports lost connections only in the text of a RuntimeError.
    """
    texts = (str(cause) for cause in causes(error) if isinstance(cause, RuntimeError))
    found = next((text for text in texts if GONE.search(text)), None)
    if found is None:
        return None
    address = re.search(r"\[([0-9a-f.:]+)\]:\d+", found, re.I)
    where = f" at {address[1]}" if address else ""
    return f"[E111] another process of the run{where} has ended or cannot be reached"
