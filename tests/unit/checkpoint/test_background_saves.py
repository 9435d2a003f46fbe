"""Saving in the background: a consistent copy, one save at a time, and errors that are told."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from pathlib import Path

import pytest
import torch

from worldsmith.checkpoint.dcp import dcp_folder as dcp
from worldsmith.checkpoint.run.checkpointer import Checkpointer, load_positions
from worldsmith.checkpoint.run.find_checkpoint import POINTER
from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.checkpoint.run.staging_buffer import Stager, allocate_private


def checkpointer(folder: Path, **settings) -> Checkpointer:
    return Checkpointer.Config(init="scratch", **settings).build(folder=folder)


class Gate:
    """Stands in front of the writing of tensors, also in the process that writes: it can be shut, and it can break."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        context = multiprocessing.get_context("fork")
        self.open, self.reached, self.broken = context.Event(), context.Event(), context.Event()
        self.save_part = dcp.save_part
        monkeypatch.setattr(dcp, "save_part", self)

    def __call__(self, *args, **kwargs) -> None:
        self.reached.set()
        assert self.open.wait(240)
        if self.broken.is_set():
            raise OSError(5, "Input/output error")
        self.save_part(*args, **kwargs)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Made before the Checkpointer, whose process inherits it."""
    return Gate(monkeypatch)


@pytest.fixture(autouse=True, params=["process", "thread"])
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What writes: a process, or a thread as where processes cannot be forked."""
    if request.param == "thread":
        monkeypatch.setattr(sys, "platform", "elsewhere")


def read(one: Checkpointer, folder: Path) -> torch.Tensor:
    state = {"net.a": torch.zeros(4)}
    one.load_part(folder, "model", state)
    return state["net.a"]


def test_what_is_written_is_what_was_there_when_save_was_called(tmp_path: Path, gate: Gate) -> None:
    """The caller changes the tensors at once, in place; the checkpoint appears later and has the old values."""
    one = checkpointer(tmp_path)
    weights, position = torch.arange(4.0), {"next_position": 3}
    folder = one.save(1, {"model": {"net.a": weights}}, dataloader=position, background=True)
    weights.mul_(-1)
    position["next_position"] = 9
    assert gate.reached.wait(240)
    assert one.is_saving
    assert not one.has_saved
    assert one.latest() is None
    gate.open.set()
    assert one.wait_for_background_save() == folder == one.latest()
    assert torch.equal(read(one, folder), torch.arange(4.0))
    assert load_positions(folder) == [{"next_position": 3}]
    assert one.wait_for_background_save() is None


def test_the_next_save_waits_for_the_one_before(tmp_path: Path, gate: Gate) -> None:
    """Its copy would overwrite the buffers of the first, which is still being written."""
    one = checkpointer(tmp_path)
    weights = torch.ones(4)
    one.save(1, {"model": {"net.a": weights}}, background=True)
    threading.Timer(0.2, gate.open.set).start()
    weights.fill_(2)
    one.save(2, {"model": {"net.a": weights}}, background=True)
    assert (tmp_path / POINTER).read_text() == "iter_000000001\n"
    one.wait_for_background_save()
    assert [read(one, tmp_path / f"iter_00000000{n}")[0].item() for n in (1, 2)] == [1.0, 2.0]


def test_an_error_in_the_background_is_raised_by_settle_and_leaves_nothing(tmp_path: Path, gate: Gate) -> None:
    one = checkpointer(tmp_path)
    gate.open.set()
    one.save(1, {"model": {"net.a": torch.ones(4)}})
    gate.broken.set()
    one.save(2, {"model": {"net.a": torch.ones(4)}}, background=True)
    with pytest.raises(SaveError, match=r"iter_000000002 could not be written .*Input/output error.*unchanged"):
        one.wait_for_background_save()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iter_000000001", POINTER]
    gate.broken.clear()
    one.save(3, {"model": {"net.a": torch.ones(4)}}, background=True)
    assert one.wait_for_background_save().name == "iter_000000003"


@pytest.mark.parametrize("background", [False, True])
def test_a_folder_that_is_gone_is_a_failed_save(tmp_path: Path, background: bool) -> None:
    """A storage that is away for a while must not end a run, so it is a SaveError like others."""
    one = checkpointer(tmp_path / "away")
    (tmp_path / "away").rmdir()
    with pytest.raises(SaveError, match=r"could not be written .*No such file"):
        one.save(1, {"model": {"net.a": torch.ones(4)}}, background=background)


def test_too_little_memory_for_the_copy_is_a_failed_save(tmp_path: Path) -> None:
    one = checkpointer(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stager, "_prepare", out_of_memory)
        with pytest.raises(SaveError, match="no memory for the copy"):
            one.save(1, {"model": {"net.a": torch.ones(4)}}, background=True)
    one.save(2, {"model": {"net.a": torch.ones(4)}}, background=True)
    assert one.wait_for_background_save() == one.latest() == tmp_path / "iter_000000002"


def out_of_memory(*arguments: object) -> None:
    raise MemoryError("no memory for the copy")


def test_buffers_are_used_again() -> None:
    """The second copy of the same tensors takes no new memory; when there are more of them it takes some."""
    taken: list[int] = []

    def allocate(size: int) -> torch.Tensor:
        taken.append(size)
        return allocate_private(size)

    def staged(parts: dict[str, dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        layout, buffer = stager.stage(parts)
        return {item.index.fqn: layout.view(buffer, part, item) for part in parts for item in layout.plans[part].items}

    stager, weights = Stager(allocate), torch.ones(1000)
    first = staged({"model": {"a": weights}})["a"]
    weights.fill_(5)
    assert first[0] == 1
    assert staged({"model": {"a": weights}})["a"].data_ptr() == first.data_ptr()
    assert first[0] == 5
    third = staged({"model": {"a": weights}, "optim": {"b": torch.tensor(3), "c": torch.zeros(0, 2)}})
    assert third["a"].data_ptr() not in (first.data_ptr(), weights.data_ptr())
    assert third["b"] == 3
    assert third["c"].shape == (0, 2)
    assert taken == [4032, 4032 + 64]
