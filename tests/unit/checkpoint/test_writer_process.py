"""The process that writes background saves: the same files, its errors, its death, and the end of its owner."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from worldsmith.checkpoint.dcp import dcp_folder as dcp
from worldsmith.checkpoint.dcp.tensor_reader import load_part
from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.checkpoint.run.staging_buffer import Stager
from worldsmith.checkpoint.run.write_checkpoint import Save, WriterProcess
from worldsmith.distributed.coordination_group import SideGroup
from worldsmith.distributed.process_signals import STOP_SIGNALS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread writes")
ALONE = SideGroup(0, 1)


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
    load_part(folder, found, no_dist=True)
    return found


def save_to(target: Path) -> Save:
    return Save(target, {"config.yaml": "a: 1\n"}, '{"next": 3}', 0, None, None)


def test_tensors_are_written_as_they_were_when_they_were_staged(tmp_path: Path) -> None:
    """One save after the other, with more tensors, and with the same ones, for which nothing is sent again."""
    process = WriterProcess()
    stager, state = Stager(process.allocate), make_state()
    layouts = []
    for number, more in enumerate([{}, {"g": torch.ones(100_000)}, {"g": torch.full((100_000,), 2.0)}]):
        parts = {"model": state, "optim": {"net.x": torch.randn(3), **more}}
        expected = {part: {name: t.clone() for name, t in tensors.items()} for part, tensors in parts.items()}
        layouts.append(stager.stage(parts)[0])
        for tensor in state.values():
            tensor.logical_not_() if tensor.dtype == torch.bool else tensor.add_(1)
        folder = tmp_path / f"iter_{number}"
        assert process.write(save_to(folder), layouts[-1], ALONE) is None
        for part, tensors in expected.items():
            found = read(folder / part, tensors)
            assert not [name for name in tensors if not torch.equal(found[name], tensors[name])]
        assert (folder / "dataloader/rank_0.json").read_text() == '{"next": 3}'
        assert (folder / "config.yaml").read_text() == "a: 1\n"
    assert layouts[0] is not layouts[1]
    assert layouts[1] is layouts[2]


def test_its_errors_are_the_callers_and_it_goes_on(tmp_path: Path) -> None:
    """A folder that cannot be made: the file system's error with its number. Another error: with its traceback."""
    process = WriterProcess()
    layout, _ = Stager(process.allocate).stage({"model": make_state()})
    (tmp_path / "file").write_text("")
    error = process.write(save_to(tmp_path / "file/iter_1"), layout, ALONE)
    assert isinstance(error, NotADirectoryError)
    assert error.filename is not None
    mistake = process.write(save_to(None), layout, ALONE)  # type: ignore[arg-type]
    assert isinstance(mistake, AttributeError)
    assert "write_checkpoint.py" in mistake.__notes__[0]
    assert process.write(save_to(tmp_path / "iter_1"), layout, ALONE) is None
    assert process.is_alive


def test_tensors_in_its_memory_look_whole() -> None:
    """DCP copies what is a part of a larger storage before it writes it, and keeps all copies until the file ends."""
    process = WriterProcess()
    layout, buffer = Stager(process.allocate).stage({"model": make_state()})
    for item in layout.plans["model"].items:
        view = layout.view(buffer, "model", item)
        assert view.untyped_storage().nbytes() == view.nbytes
        assert view.nbytes == 0 or 0 <= view.data_ptr() - buffer.data_ptr() < buffer.nbytes
        assert view.is_contiguous()


def test_it_writes_for_an_owner_with_several_threads(tmp_path: Path) -> None:
    """OpenMP's threads, which the owner has used by then, do not survive a fork."""
    code = f"""
import torch
from pathlib import Path
torch.set_num_threads(2)
torch.ones(3_000_000).add(1)
from worldsmith.checkpoint.run.checkpointer import Checkpointer
one = Checkpointer.Config(init="scratch").build(folder=Path({str(tmp_path)!r}))
for iteration in (1, 2):
    weights = {{"net.a": torch.ones(3_000_000), "net.b": torch.ones(3_000_000)}}
    one.save(iteration, {{"model": weights}}, background=True)
    print(one.wait_for_background_save().name, flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.stdout.split() == ["iter_000000001", "iter_000000002"], done.stderr


class UnsendableError(OSError):
    """Takes two arguments and says one, so that it cannot be made again from what is sent of it."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_errors_that_cannot_be_sent_are_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*arguments: object, **settings: object) -> None:
        raise UnsendableError("the store", "is gone")

    monkeypatch.setattr(dcp, "save_part", break_down)
    one = Checkpointer.Config(init="scratch").build(folder=tmp_path)
    one.save(1, {"model": {"net.a": torch.ones(3)}}, background=True)
    with pytest.raises(SaveError, match="the store is gone"):
        one.wait_for_background_save()


def test_when_it_dies_one_save_fails_and_a_thread_writes_the_next(tmp_path: Path) -> None:
    one, writer = with_writer(tmp_path)
    weights = torch.arange(4.0)
    one.save(1, {"model": {"net.a": weights}}, background=True)
    one.wait_for_background_save()
    die(writer)
    one.save(2, {"model": {"net.a": weights}}, background=True)
    with pytest.raises(SaveError, match="process that writes checkpoints has died"):
        one.wait_for_background_save()
    one.save(3, {"model": {"net.a": weights}}, background=True)
    weights.zero_()
    assert one.wait_for_background_save() == one.latest()
    assert torch.equal(read(tmp_path / "iter_000000003/model", {"net.a": weights})["net.a"], torch.arange(4.0))


def test_when_it_has_died_before_it_was_needed_a_thread_writes_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, writer = with_writer(tmp_path)
    die(writer)
    with caplog.at_level(logging.WARNING):
        one.save(1, {"model": {"net.a": torch.ones(4)}}, background=True)
    assert "process that writes checkpoints has died" in caplog.text
    assert one.wait_for_background_save() == one.latest()


def with_writer(folder: Path) -> tuple[Checkpointer, psutil.Process]:
    others = writers_of(os.getpid())
    one = Checkpointer.Config(init="scratch").build(folder=folder)
    (writer,) = [process for process in writers_of(os.getpid()) if process not in others]
    return one, writer


def die(process: psutil.Process) -> None:
    process.kill()
    process.wait(timeout=100)


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    """Also when the owner is killed; and it is not disturbed by the signals that stop a run."""
    code = (
        "import time; from worldsmith.checkpoint.run.write_checkpoint import WriterProcess; "
        "process = WriterProcess(); print('ready', flush=True); time.sleep(240)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    (writer,) = writers_of(owner.pid)
    time.sleep(0.2)
    for number in STOP_SIGNALS:
        writer.send_signal(number)
    time.sleep(0.2)
    assert writer.is_running()
    owner.kill()
    owner.wait()
    writer.wait(timeout=100)


def test_it_does_not_finish_a_save_of_an_owner_that_is_killed(tmp_path: Path) -> None:
    """It would meet the next run in the same folder. It dies in the middle, which for once is made to last."""
    code = f"""
import sys, time
from pathlib import Path
import torch
from worldsmith.checkpoint.dcp import dcp_folder as dcp
from worldsmith.checkpoint.run.checkpointer import Checkpointer
folder, write = Path({str(tmp_path)!r}), dcp.save_part
def slow(*arguments, **settings):
    write(*arguments, **settings)
    (folder / "written").touch()
    time.sleep(240)
dcp.save_part = slow
one = Checkpointer.Config(init="scratch").build(folder=folder)
one.save(1, {{"model": {{"net.a": torch.ones(3)}}}}, background=True)
time.sleep(240)
"""
    owner = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code])
    for _ in range(2400):
        if (tmp_path / "written").exists():
            break
        time.sleep(0.1)
    (writer,) = writers_of(owner.pid)
    owner.kill()
    owner.wait()
    writer.wait(timeout=100)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".saving_iter_000000001", "written"]


def writers_of(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if not has_ended(child)]


def has_ended(process: psutil.Process) -> bool:
    """A writer of an earlier test may be collected by its owner between two calls."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
