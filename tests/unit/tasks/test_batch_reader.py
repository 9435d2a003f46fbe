"""The next batch is read and prepared while another one is computed, and a save knows nothing of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
import toy_runs
from toy_family import Row, ToyTask

from worldsmith.data.stream.errors import DataError
from worldsmith.tasks.batch_reader import BatchReader
from worldsmith.tasks.task import Task
from worldsmith.training.trainer import Trainer


class Preparing:
    """A task that prepares the keys of a batch, and remembers in which thread."""

    class model:  # noqa: N801
        device = torch.device("cpu")

    def __init__(self) -> None:
        self.threads: list[str] = []

    def prepare(self, batch: list[int], *, seed: int) -> list[int]:
        if 99 in batch:
            raise ValueError("a batch that cannot be prepared")
        self.threads.append(threading.current_thread().name)
        return [seed, *batch]


class Numbers:
    """A loader of batches [0], [1], …; it fails at `broken`."""

    def __init__(self, broken: int = 1000, first: int = 0) -> None:
        self.read, self.broken = first, broken

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            if self.read == self.broken:
                raise DataError("no sample can be used")
            self.read += 1
            yield [self.read - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read}


def reader(loader: Numbers, count: int = 9, task: Any = None) -> BatchReader:
    return BatchReader(loader, task or Preparing(), seed=7, count=count)  # type: ignore[arg-type]


def test_one_batch_is_read_ahead_and_none_beyond_the_end() -> None:
    loader = Numbers()
    batches = reader(loader, count=4)
    assert batches.peek() == [0]
    seen = []
    for number in range(4):
        assert next(batches) == [number]
        seen.append((loader.read, dict(batches.loader_state or {})))
    assert seen == [(1, {"read": 1}), (3, {"read": 2}), (4, {"read": 3}), (4, {"read": 4})]


def test_inputs_are_prepared_in_a_thread_at_most_one_batch_ahead() -> None:
    task = Preparing()
    batches = reader(Numbers(), task=task)
    first, second, third = next(batches), next(batches), next(batches)
    assert not task.threads
    assert batches.inputs_of(first) == [7, 0]
    assert batches.inputs_of(third) == [7, 2], "a step between them was skipped"
    assert batches.inputs_of(second) is None
    batches.close()
    assert 2 <= len(task.threads) <= 4
    assert all(name.startswith("prepare") for name in task.threads)


def test_a_mistake_of_the_thread_is_raised_where_its_batch_is_used() -> None:
    batches = reader(Numbers(first=98))
    first, second = next(batches), next(batches)
    assert batches.inputs_of(first) == [7, 98]
    with pytest.raises(ValueError, match="cannot be prepared"):
        batches.inputs_of(second)


def test_an_error_of_the_data_waits_for_its_batch_and_stays() -> None:
    batches = reader(Numbers(broken=2))
    assert [next(batches), next(batches)] == [[0], [1]]
    for _ in range(2):
        with pytest.raises(DataError):
            next(batches)


def test_a_family_that_prepares_nothing_gets_nothing() -> None:
    class Plain(Task):
        def __init__(self) -> None:
            self.model = Preparing.model

        def loss(self, batch: Any, *, seed: int) -> Any: ...

    batches = reader(Numbers(), task=Plain())
    assert [batches.inputs_of(next(batches)) for _ in range(3)] == [None] * 3
    assert not batches.returned, "no batch is kept"


def test_data_that_end_stop_the_run_after_the_save_that_is_due(tmp_path: Path) -> None:
    """The batch of the third step cannot be read: two steps are saved, then the run fails."""
    config = toy_runs.toy_config(toy_runs.make_world(tmp_path / "world"), steps=4, save_iter=2)
    trainer = Trainer(config, run_folder=tmp_path / "run")
    stream = iter(trainer.state.loader)
    packs = [next(stream) for _ in range(2 * config.trainer.grad_accum_iter)]

    def broken() -> Iterator[Any]:
        yield from packs
        raise DataError("no sample can be used")

    type(trainer.state.loader).__iter__, plain = (lambda loader: broken()), type(trainer.state.loader).__iter__  # type: ignore[method-assign]
    try:
        with pytest.raises(DataError):
            trainer.train()
    finally:
        type(trainer.state.loader).__iter__ = plain  # type: ignore[method-assign]
    assert (tmp_path / "run/checkpoints/latest_checkpoint.txt").read_text() == "iter_000000002\n"


def test_a_step_is_the_same_with_prepared_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses of a run whose inputs a thread prepares equal, bit for bit, those that the loss prepares itself."""
    world, losses = tiny_runs.make_world(tmp_path), []
    for folder in ("thread", "inline"):
        if folder == "inline":
            monkeypatch.setattr(BatchReader, "inputs_of", lambda *_: None)
        Trainer(tiny_runs.tiny_config(world, steps=3, cache=False), run_folder=tmp_path / folder).train()
        losses.append(toy_runs.read_losses(tmp_path / folder))
    assert losses[0] == losses[1]


def test_rows_are_those_that_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family without `prepare` is called as before."""
    seen: list[list[str]] = []
    plain = ToyTask.loss

    def loss(task: ToyTask, batch: Sequence[Row], *, seed: int) -> Any:
        seen.append([row.key for row in batch])
        return plain(task, batch, seed=seed)

    monkeypatch.setattr(ToyTask, "loss", loss)
    config = toy_runs.toy_config(toy_runs.make_world(tmp_path / "world"), steps=3)
    Trainer(config, run_folder=tmp_path / "run").train()
    trainer = Trainer(config, run_folder=tmp_path / "again")
    stream = iter(trainer.state.loader)
    assert seen == [[row.key for row in next(stream)] for _ in seen]
