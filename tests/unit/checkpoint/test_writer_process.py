"""The process that writes background saves: the same files, its errors, its death, and the end of its owner."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from worldsmith.checkpoint import dcp
from worldsmith.checkpoint.checkpointer import Checkpointer
from worldsmith.checkpoint.save_error import SaveError
from worldsmith.checkpoint.writer_process import WriterProcess, place_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread writes")


def make_state() -> dict[str, torch.Tensor]:
    """Scalars, an empty tensor, a view that is not contiguous, and several types."""
    return {
        "a": torch.randn(7, 5),
        "b": torch.tensor(3),
        "c": torch.randn(6, 4).t(),
        "d": torch.empty(0, 3),
        "e": torch.randn(9).bfloat16(),
        "f": torch.tensor([True, False]),
    }


def read(folder: Path, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load_part(folder, found, no_dist=True)
    return found


def test_it_writes_what_a_thread_would_write(tmp_path: Path) -> None:
    """Equal tensors and, where they are contiguous, equal bytes of the files; one folder after the other."""
    state, process = make_state(), WriterProcess()
    contiguous = {name: tensor for name, tensor in state.items() if tensor.is_contiguous()}
    dcp.save_part(tmp_path / "all", state, no_dist=True, process=process)
    found = read(tmp_path / "all", state)
    assert not [key for key in state if not torch.equal(found[key], state[key])]
    dcp.save_part(tmp_path / "one", contiguous, no_dist=True, process=process)
    dcp.save_part(tmp_path / "own", contiguous, no_dist=True)
    (file,) = (tmp_path / "one").glob("*.distcp")
    assert file.read_bytes() == (tmp_path / "own" / file.name).read_bytes()


def test_its_errors_are_the_callers_and_it_goes_on(tmp_path: Path) -> None:
    """A folder that cannot be written: an OSError with its number; tensors on their way are taken back."""
    state, process = make_state(), WriterProcess()
    with pytest.raises(OSError, match="No such file or directory"):
        process.write(tmp_path / "nowhere", plan_of(state), Resolver(state))
    dcp.save_part(tmp_path / "good", state, no_dist=True, process=process)
    assert torch.equal(read(tmp_path / "good", state)["a"], state["a"])


def plan_of(state: dict[str, torch.Tensor]):
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import _StoragePrefix

    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(state), is_coordinator=True)
    plan = planner.create_local_plan()
    return type(plan)(plan.items, storage_data=_StoragePrefix("__0_"))


class Resolver:
    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self.state = state

    def resolve_data(self, item) -> torch.Tensor:
        return self.state[item.index.fqn]


def test_when_it_dies_one_save_fails_and_a_thread_writes_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = writers_of(os.getpid())
    one = Checkpointer.Config(init="scratch").build(folder=tmp_path)
    weights = torch.arange(4.0)
    (writer,) = [process for process in writers_of(os.getpid()) if process not in others]
    writer.kill()
    one.save(1, {"model": {"net.a": weights}}, background=True)
    with caplog.at_level(logging.WARNING), pytest.raises(SaveError, match="process that writes checkpoints has died"):
        one.settle()
    one.save(2, {"model": {"net.a": weights}}, background=True)
    assert one.settle() == one.latest()
    assert writer not in writers_of(os.getpid())


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    """Also when the owner is killed; and it is not disturbed by the signals that stop a run."""
    code = (
        "import time; from worldsmith.checkpoint.writer_process import WriterProcess; "
        "process = WriterProcess(); print('ready', flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    (writer,) = writers_of(owner.pid)
    time.sleep(0.2)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        writer.send_signal(number)
    time.sleep(0.2)
    assert writer.is_running()
    owner.kill()
    owner.wait()
    writer.wait(timeout=10)


def writers_of(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if child.status() != psutil.STATUS_ZOMBIE]


def test_tensors_in_its_memory_are_read_where_they_lie(tmp_path: Path) -> None:
    """They are not sent, those elsewhere are; a new piece of memory takes the place of the old one."""
    process = WriterProcess()
    for value in (1.0, 2.0):
        shared = process.allocate(4096)[64 : 64 + 40].view(torch.float32)
        shared.fill_(value)
        state = {"here": shared, "column": shared.view(5, 2)[:, 0], "elsewhere": torch.full((3,), value)}
        folder = tmp_path / str(value)
        dcp.save_part(folder, state, no_dist=True, process=process)
        found = read(folder, state)
        assert not [name for name in state if not torch.equal(found[name], state[name])]
    sent = [place_in(process.allocate(4096), tensor) for tensor in state.values()]
    assert sent == [None, None, None]
    memory = process.allocate(4096)
    assert [place_in(memory, t) for t in (memory[8:16], memory[::2], torch.ones(2))] == [8, None, None]
