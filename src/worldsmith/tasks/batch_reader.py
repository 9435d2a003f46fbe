"""`BatchReader`: reads the batches of a run one ahead, and prepares their inputs in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.tasks.device_copy import StagedTensors
from worldsmith.tasks.task import Task


@dataclass(slots=True)
class ReadBatch:
    """A batch that was read before it is needed."""

    batch: Any
    loader_state: Mapping[str, Any]
    """State of the data loader after this batch."""
    prepared: Future[StagedTensors] | None = None
    """Result of `Task.prepare` in memory that is ready for a copy to the device; None: not begun."""


class BatchReader(Iterator[Any]):
    """Iterator over the batches of this rank: the next batch is read and prepared while another one is computed.

    A thread runs `Task.prepare`, and copies the results to one buffer, in pinned memory for CUDA. It is at most one
    batch ahead. Reading stays in the calling thread, which starts the loader's worker processes.

    Args:
        loader: Data loader of this rank.
        task: Task of the run.
        seed: Seed of the run.
        count: Number of batches until the end of the run; no further one is read.
    """

    def __init__(self, loader: PackingDataLoader, task: Task, *, seed: int, count: int) -> None:
        self.loader, self.stream, self.task, self.seed, self.left = loader, iter(loader), task, seed, count
        self.ahead: deque[ReadBatch] = deque()
        """Batches that were read and not yet returned."""
        self.returned: deque[ReadBatch] = deque()
        """Batches that were returned, in order, until `inputs_of` is called for them; none if `prepares` is False."""
        self.error: Exception | None = None
        """Error at reading, which every further call raises."""
        self.loader_state: Mapping[str, Any] | None = None
        """State of the data loader after the batch that was returned last; None before the first one."""
        self.prepares = type(task).prepare is not Task.prepare
        self.pool = ThreadPoolExecutor(1, "prepare", initializer=use_device, initargs=(task.model.device,))

    def peek(self) -> Any:
        """Returns the next batch, which the next call of `next` returns again."""
        if not self.ahead:
            if self.error is not None:
                raise self.error
            self._read()
        return self.ahead[0].batch

    def __next__(self) -> Any:
        """Returns the next batch.

        Raises:
            DataError: If the data cannot be read; also for a batch that was read ahead.
        """
        self.peek()
        current = self.ahead.popleft()
        is_first = self.loader_state is None  # the first step must not wait for two batches
        self.loader_state = current.loader_state
        if self.prepares:
            self.returned.append(current)
        if self.left > 0 and not is_first:
            with suppress(Exception):  # the next call raises it
                self._read()
        return current.batch

    def inputs_of(self, batch: Any) -> Any:
        """Returns the prepared inputs of a batch, with the tensors on the device; None without prepared inputs.

        The copy does not block. The thread prepares the batch after it next.
        """
        if not any(known.batch is batch for known in self.returned):
            return None
        while (current := self.returned.popleft()).batch is not batch:
            pass  # a batch of a step that was skipped before its forward pass
        for known in (current, *[*self.returned, *self.ahead][:1]):
            known.prepared = known.prepared or self.pool.submit(self._prepare, known.batch)
        assert current.prepared is not None
        return current.prepared.result().move()

    def close(self) -> None:
        """Ends the thread; batches that were read ahead are dropped."""
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _read(self) -> None:
        try:
            self.ahead.append(ReadBatch(next(self.stream), self.loader.state_dict()))
        except Exception as error:
            self.error = error
            raise
        self.left -= 1

    def _prepare(self, batch: Any) -> StagedTensors:
        return StagedTensors(self.task.prepare(batch, seed=self.seed), self.task.model.device)


def use_device(device: torch.device) -> None:
    """Makes `device` the current CUDA device of this thread, so that pinned memory belongs to its context."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
