"""Saving in the background: a consistent copy, one save at a time, and errors that are told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from worldsmith.checkpoint import dcp
from worldsmith.checkpoint.checkpointer import POINTER, Checkpointer
from worldsmith.checkpoint.save_error import SaveError


def checkpointer(folder: Path, **settings) -> Checkpointer:
    return Checkpointer.Config(init="scratch", **settings).build(folder=folder)


class Gate:
    """Stands in front of the writing of tensors: it can be shut, and it can break."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.error, self.reached = threading.Event(), None, threading.Event()
        self.save_part = dcp.save_part
        monkeypatch.setattr(dcp, "save_part", self)

    def __call__(self, *args, **kwargs) -> None:
        self.reached.set()
        assert self.open.wait(20)
        if self.error is not None:
            raise self.error
        self.save_part(*args, **kwargs)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


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
    assert gate.reached.wait(20)
    assert one.is_saving
    assert not one.has_saved
    assert one.latest() is None
    gate.open.set()
    assert one.settle() == folder == one.latest()
    assert torch.equal(read(one, folder), torch.arange(4.0))
    assert one.load_dataloader(folder) == [{"next_position": 3}]
    assert one.settle() is None


def test_the_next_save_waits_for_the_one_before(tmp_path: Path, gate: Gate) -> None:
    """Its copy would overwrite the buffers of the first, which is still being written."""
    one = checkpointer(tmp_path)
    weights = torch.ones(4)
    one.save(1, {"model": {"net.a": weights}}, background=True)
    threading.Timer(0.2, gate.open.set).start()
    weights.fill_(2)
    one.save(2, {"model": {"net.a": weights}}, background=True)
    assert (tmp_path / POINTER).read_text() == "iter_000000001\n"
    one.settle()
    assert [read(one, tmp_path / f"iter_00000000{n}")[0].item() for n in (1, 2)] == [1.0, 2.0]


def test_an_error_in_the_background_is_raised_by_settle_and_leaves_nothing(tmp_path: Path, gate: Gate) -> None:
    one = checkpointer(tmp_path)
    gate.open.set()
    one.save(1, {"model": {"net.a": torch.ones(4)}})
    gate.error = OSError(5, "Input/output error")
    one.save(2, {"model": {"net.a": torch.ones(4)}}, background=True)
    with pytest.raises(SaveError, match=r"iter_000000002 could not be written .*Input/output error.*untouched"):
        one.settle()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iter_000000001", POINTER]
    gate.error = None
    one.save(3, {"model": {"net.a": torch.ones(4)}}, background=True)
    assert one.settle().name == "iter_000000003"


def test_buffers_are_used_again(tmp_path: Path) -> None:
    """The second copy of the same tensors takes no new memory; when there are more of them it takes some."""
    from worldsmith.checkpoint.staging import Stager, private_memory

    stager, weights = Stager(private_memory), torch.ones(1000)
    first = stager.stage({"model": {"a": weights}})["model"]["a"]
    weights.fill_(5)
    assert first[0] == 1
    second = stager.stage({"model": {"a": weights}})["model"]["a"]
    assert second.data_ptr() == first.data_ptr() != weights.data_ptr()
    assert second[0] == 5
    third = stager.stage({"model": {"a": weights}, "optim": {"b": torch.tensor(3), "c": torch.zeros(0, 2)}})
    assert third["model"]["a"].data_ptr() != weights.data_ptr()
    assert third["optim"]["b"] == 3
    assert third["optim"]["c"].shape == (0, 2)
