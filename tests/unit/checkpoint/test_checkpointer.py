"""Checkpoints are complete or invisible, and what is read back is what was written, bit for bit."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from mortal import Mortal
from torch import nn

from worldsmith.checkpoint.dcp import parts as dcp
from worldsmith.checkpoint.dcp.parts import stored_shapes
from worldsmith.checkpoint.run import folders
from worldsmith.checkpoint.run.checkpointer import Checkpointer, load_positions
from worldsmith.checkpoint.run.folders import POINTER, find_latest
from worldsmith.checkpoint.run.optimizer_state import empty_optimizer_state, optimizer_state, restore_optimizer_state
from worldsmith.checkpoint.run.rng_state import rng_state, seed_everything, set_rng_state
from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.checkpoint.sources.warm_start import load_weights
from worldsmith.config.errors import UserError
from worldsmith.distributed.world import World
from worldsmith.files import atomic
from worldsmith.files.lease import release_leases
from worldsmith.files.manifest import find_damage


def checkpointer(folder: Path, **settings) -> Checkpointer:
    return Checkpointer.Config(init="scratch", **settings).build(folder=folder)


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"net.{name}": torch.randn(shape, generator=generator) for name, shape in (("a", (4, 6)), ("b", (3,)))}


def save(one: Checkpointer, iteration: int) -> Path:
    return one.save(iteration, {"model": weights(iteration)}, dataloader={"position": iteration})


def test_layout_pointer_and_round_trip(tmp_path: Path) -> None:
    one = checkpointer(tmp_path)
    folder = one.save(20, {"model": weights(1), "trainer": {"iteration": torch.tensor(20)}}, dataloader={"position": 7})
    assert folder.name == "iter_000000020"
    assert sorted(p.name for p in folder.iterdir()) == ["dataloader", "manifest.json", "model", "trainer"]
    assert (tmp_path / POINTER).read_text() == "iter_000000020\n"
    assert one.latest() == folder
    read = {name: torch.zeros_like(tensor) for name, tensor in weights().items()}
    one.load_part(folder, "model", read)
    assert all(torch.equal(read[name], tensor) for name, tensor in weights(1).items())
    assert load_positions(folder) == [{"position": 7}]
    assert stored_shapes(folder / "model") == {"net.a": [4, 6], "net.b": [3]}


def test_torch_reads_our_checkpoint_without_us(tmp_path: Path) -> None:
    """The independent reader of PyTorch turns the model folder into a plain torch.save file."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    folder = save(checkpointer(tmp_path), 5)
    dcp_to_torch_save(folder / "model", tmp_path / "model.pt")
    read = torch.load(tmp_path / "model.pt", weights_only=True)
    assert {name: tensor.shape for name, tensor in read.items()} == {n: t.shape for n, t in weights().items()}
    assert torch.equal(read["net.a"], weights(5)["net.a"])


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest", "folder"])
def test_damaged_newest_falls_back_loudly(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    one = checkpointer(tmp_path)
    previous, newest = save(one, 10), save(one, 20)
    shard = newest / "model" / "__0_0.distcp"
    if damage == "truncate":
        os.truncate(shard, shard.stat().st_size - 5)
    elif damage == "flip":
        content = bytearray(shard.read_bytes())
        content[-20] ^= 1
        shard.write_bytes(content)
    elif damage == "remove":
        shard.unlink()
    elif damage == "manifest":
        (newest / "manifest.json").unlink()
    else:
        atomic.remove_folder(newest)
    assert one.latest() == previous
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "iter_000000020" in warnings[0]
    assert "iter_000000010" in warnings[1]


def test_nothing_complete_is_an_error_and_not_a_fresh_start(tmp_path: Path) -> None:
    one = checkpointer(tmp_path)
    assert one.latest() is None
    (save(one, 10) / "manifest.json").unlink()
    with pytest.raises(UserError, match="iter_000000010: it has no manifest"):
        one.latest()
    atomic.remove_folder(tmp_path / "iter_000000010")
    with pytest.raises(UserError, match="names a checkpoint"):
        one.latest()


def test_pointer_chooses_among_complete_checkpoints(tmp_path: Path) -> None:
    one = checkpointer(tmp_path)
    previous, newest = save(one, 10), save(one, 20)
    assert one.latest() == newest
    (tmp_path / POINTER).write_text("iter_000000010\n")
    assert one.latest() == previous
    (tmp_path / POINTER).unlink()
    assert one.latest() == newest


def test_keep_latest_k(tmp_path: Path) -> None:
    one = checkpointer(tmp_path, keep_latest_k=2)
    for iteration in (1, 2, 3, 4):
        save(one, iteration)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["iter_000000003", "iter_000000004", POINTER]


def test_damaged_ones_that_the_run_went_back_from_do_not_count(tmp_path: Path) -> None:
    """After a fall back from step 4 to step 2, the two newest are 3 and 2: the damaged one takes nobody's place."""
    one = checkpointer(tmp_path, keep_latest_k=2)
    save(one, 2)
    (save(one, 4) / "model" / "__0_0.distcp").unlink()
    assert one.latest().name == "iter_000000002"
    save(one, 3)
    assert sorted(p.name for p in tmp_path.glob("iter_*")) == ["iter_000000002", "iter_000000003"]


def test_keep_every_saves_milestones(tmp_path: Path) -> None:
    one = checkpointer(tmp_path, keep_latest_k=1, keep_every=4)
    for iteration in (2, 4, 6, 8, 10):
        save(one, iteration)
    assert [p.name[-2:] for p in sorted(tmp_path.glob("iter_*"))] == ["04", "08", "10"]


def test_a_save_that_was_complete_and_had_no_name_yet_is_kept(tmp_path: Path) -> None:
    """Killed between the removal of an older folder of the same step and the rename: what was written is not lost."""
    folder = save(checkpointer(tmp_path), 7)
    os.replace(folder, tmp_path / f"{atomic.SAVING}{folder.name}")
    assert checkpointer(tmp_path).latest() == folder
    os.replace(folder, tmp_path / f"{atomic.SAVING}{folder.name}")
    (tmp_path / f"{atomic.SAVING}{folder.name}" / "model" / "__0_0.distcp").unlink()
    with pytest.raises(UserError, match="none is there"):
        checkpointer(tmp_path).latest()


def test_saving_again_replaces(tmp_path: Path) -> None:
    one = checkpointer(tmp_path)
    save(one, 3)
    one.save(3, {"model": weights(99)})
    read = weights()
    one.load_part(one.latest(), "model", read)
    assert torch.equal(read["net.a"], weights(99)["net.a"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["iter_000000003", POINTER]


def kill_during_save(folder: Path, point: int, *, background: bool) -> bool:
    """Saves in a forked process that kills itself (SIGKILL) at the `point`-th file operation; True when killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            Mortal().arm(point)
            one = checkpointer(folder, keep_latest_k=2)
            one.save(20, {"model": weights(20), "trainer": {"i": torch.tensor(20)}}, background=background)
            one.settle()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize("background", [False, True])
def test_kill_at_any_moment_of_a_save_leaves_a_complete_checkpoint(tmp_path: Path, background: bool) -> None:
    """Every file operation of a save is a kill point, from the first file to the removal of the oldest checkpoint."""
    outcomes: list[str] = []
    for point in range(1, 100):
        folder = tmp_path / str(point)
        one = checkpointer(folder)
        save(one, 5)
        save(one, 10)
        killed = kill_during_save(folder, point, background=background)
        latest = checkpointer(folder).latest()
        assert find_damage(latest) is None
        read = weights()
        one.load_part(latest, "model", read)
        assert torch.equal(read["net.a"], weights(int(latest.name[-2:]))["net.a"])
        assert not [p.name for p in folder.iterdir() if p.name.startswith(".")], "leftovers are removed at start"
        save(one, 20)
        assert one.latest().name == "iter_000000020"
        if not killed:
            break
        outcomes.append(latest.name)
    assert len(outcomes) > 20
    assert set(outcomes) == {"iter_000000010", "iter_000000020"}


def test_rng_state_continues_every_generator() -> None:
    def draw() -> list:
        return [random.random(), random.gauss(0, 1), np.random.randn(3).tolist(), torch.randn(3).tolist()]

    seed_everything(5)
    random.gauss(0, 1)
    np.random.randn()
    state = {name: tensor.clone() for name, tensor in rng_state().items()}
    expected = [draw(), draw()]
    seed_everything(6)
    set_rng_state(state)
    assert [draw(), draw()] == expected


def test_optimizer_state_by_name_continues_exactly() -> None:
    """AdamW with restored state takes the same next step; a frozen and an unused parameter are left alone."""

    def make() -> tuple[nn.Module, torch.optim.AdamW]:
        torch.manual_seed(0)
        network = nn.ModuleDict({"frozen": nn.Linear(3, 3), "used": nn.Linear(3, 2), "unused": nn.Linear(2, 2)})
        trained = [p for name, p in network.named_parameters() if not name.startswith("frozen")]
        return network, torch.optim.AdamW(trained, lr=0.1)

    def step(network: nn.Module, optimizer: torch.optim.AdamW, seed: int) -> None:
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        network["used"](x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    network, optimizer = make()
    step(network, optimizer, 1)
    saved = {key: value.clone() for key, value in optimizer_state(network, optimizer).items()}
    assert sorted(saved) == sorted(
        f"state.used.{name}.{quantity}" for name in ("weight", "bias") for quantity in ("step", "exp_avg", "exp_avg_sq")
    )
    weights_then = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    step(network, optimizer, 2)

    again, resumed = make()
    again.load_state_dict(weights_then)
    template = empty_optimizer_state(again, resumed, saved)
    for key, value in saved.items():
        template[key].copy_(value)
    restore_optimizer_state(again, resumed, template)
    step(again, resumed, 2)
    assert all(
        torch.equal(a, b) for a, b in zip(network.state_dict().values(), again.state_dict().values(), strict=True)
    )
    with pytest.raises(UserError, match=r"frozen\.weight"):
        empty_optimizer_state(again, resumed, ["state.frozen.weight.exp_avg"])


class TestWarmStart:
    def source(self, folder: Path) -> Path:
        one = checkpointer(folder / "run" / "checkpoints")
        return one.save(7, {"model": {**weights(1), "net_ema.a": torch.full((4, 6), 5.0)}})

    @pytest.mark.parametrize("level", ["run", "iter", "model"])
    def test_run_iter_or_model_folder(self, tmp_path: Path, level: str) -> None:
        iteration = self.source(tmp_path)
        path = {"run": tmp_path / "run", "iter": iteration, "model": iteration / "model"}[level]
        target = weights(2)
        report = load_weights(str(path), target)
        assert torch.equal(target["net.a"], weights(1)["net.a"])
        assert (sorted(report.loaded), report.unexpected) == (["net.a", "net.b"], ["net_ema.a"])
        assert "net_ema.a" in "\n".join(report.lines())

    def test_skipped_average_starts_from_live_weights(self, tmp_path: Path) -> None:
        target = {**weights(2), "net_ema.a": torch.zeros(4, 6)}
        report = load_weights(str(self.source(tmp_path)), target, keys_to_skip=["net_ema."])
        assert torch.equal(target["net_ema.a"], weights(1)["net.a"])
        assert report.skipped == ["net_ema.a"]

    def test_missing_and_mismatched_are_errors_unless_skipped(self, tmp_path: Path) -> None:
        source = str(self.source(tmp_path))
        with pytest.raises(UserError, match=r"Not in the checkpoint: 1 \(net.new_head\)"):
            load_weights(source, {**weights(), "net.new_head": torch.zeros(2)})
        with pytest.raises(UserError, match=r"net.b \(here \[4\], stored \[3\]\)"):
            load_weights(source, {"net.b": torch.zeros(4)})
        target = {**weights(2), "net.new_head": torch.zeros(2)}
        assert load_weights(source, target, keys_to_skip=["new_head"]).skipped == ["net.new_head"]

    def test_wrong_paths_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="no such folder"):
            load_weights(str(tmp_path / "nowhere"), weights())
        with pytest.raises(FileNotFoundError, match="no checkpoint in this folder"):
            load_weights(str(tmp_path), weights())
        (tmp_path / "model.pt").write_bytes(b"")
        with pytest.raises(UserError, match="is a file"):
            load_weights(str(tmp_path / "model.pt"), weights())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"load_training_state": True}, "load_training_state = true and load_path = null"),
        ({"load_ema_to_reg": True}, "load_ema_to_reg = true and load_path = null"),
        ({"keep_every": 5}, "keep_every = 5 and keep_latest_k = null: all checkpoints are kept"),
        ({"stop_file": "../STOP"}, "plain file name"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Checkpointer.Config(init="scratch", **settings).check()


def test_manifest_lists_every_file(tmp_path: Path) -> None:
    folder = checkpointer(tmp_path).save(1, {"model": weights()}, texts={"config.yaml": "job: {}\n"})
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    present = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} - {"manifest.json"}
    assert set(listed) == present
    assert "config.yaml" in listed


def messages(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelname == "WARNING")


def test_what_cannot_be_removed_is_no_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on NFS, while somebody reads an old checkpoint: said, and left; the save and the next start succeed."""
    one = checkpointer(tmp_path, keep_latest_k=1)
    save(one, 1)

    def rmtree(path: Path) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", rmtree)
        assert find_damage(save(one, 2)) is None
        assert "iter_000000001" in messages(caplog)
        assert "Directory not empty" in messages(caplog)
        (tmp_path / f"{atomic.SAVING}iter_000000003").mkdir()
        one = checkpointer(tmp_path, keep_latest_k=1)
        assert one.latest() == tmp_path / "iter_000000002"
        save(one, 3)  # although the broken save of this step is still on the disk, under another name
    checkpointer(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iter_000000003", POINTER]


def test_checkpoints_that_were_moved_or_copied_by_hand_are_left_alone(tmp_path: Path) -> None:
    """A link goes, and what it names stays; a copy under another name is no checkpoint."""
    run, archive = tmp_path / "run", tmp_path / "archive"
    one = checkpointer(run, keep_latest_k=1, keep_every=5)
    save(one, 1)
    os.replace(run / "iter_000000001", archive)
    (run / "iter_000000001").symlink_to(archive)
    save(one, 2)
    assert not (run / "iter_000000001").is_symlink()
    assert find_damage(archive) is None
    for name in ("iter_000000002_best", "iter_backup", "iter_2"):
        shutil.copytree(run / "iter_000000002", run / name)
    save(one, 3)
    kept = {"iter_000000003", "iter_000000002_best", "iter_backup", "iter_2", POINTER}
    assert {path.name for path in run.iterdir()} == kept
    (run / POINTER).unlink()
    assert checkpointer(run).latest() == run / "iter_000000003"


@pytest.mark.parametrize("text", [b"", b"iter_", b"\xff\xfe", b"../elsewhere\n"])
def test_a_spoiled_pointer_is_passed_over(tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    one = checkpointer(tmp_path)
    save(one, 10)
    newest = save(one, 20)
    (tmp_path / POINTER).write_bytes(text)
    assert one.latest() == newest
    assert f"passed over: {POINTER}" in messages(caplog)


@pytest.mark.parametrize("name", ["model/__0_0.distcp", "manifest.json"])
def test_a_checkpoint_that_cannot_be_read_is_passed_over(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = checkpointer(tmp_path)
    previous, newest = save(one, 10), save(one, 20)
    real_open, real_read = open, Path.read_text

    def failing_open(file: object, *arguments: object, **settings: object) -> object:
        if Path(str(file)) == newest / name:
            raise OSError(errno.EIO, "Input/output error")
        return real_open(file, *arguments, **settings)

    def failing_read(path: Path, *arguments: object, **settings: object) -> str:
        if path == newest / name:
            raise OSError(errno.EIO, "Input/output error")
        return real_read(path, *arguments, **settings)

    monkeypatch.setattr("builtins.open", failing_open)
    monkeypatch.setattr(Path, "read_text", failing_read)
    assert one.latest() == previous
    assert "iter_000000020" in messages(caplog)
    assert "Input/output error" in messages(caplog)


@pytest.mark.parametrize("only", [("",), ("model/",)])
def test_a_manifest_that_lists_nothing_is_damage(tmp_path: Path, only: tuple[str, ...]) -> None:
    (tmp_path / "manifest.json").write_text('{"files": {}}')
    assert "lists no file" in str(find_damage(tmp_path, only=only))


@pytest.mark.parametrize("content", ["[]", '{"files": []}', '{"files": {"a": 1}}', '{"files": {"a": ["x", "y"]}}', "{"])
def test_a_manifest_of_anything_else_is_damage(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    assert "manifest.json cannot be read" in str(find_damage(tmp_path))


def test_a_run_that_went_back_does_not_fall_into_what_it_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """To 40, back to 20 by the pointer, on to 30, which is damaged: 20 is next, then 10, and 40 only as the last."""
    one = checkpointer(tmp_path)
    for iteration in (10, 20, 40, 30):
        save(one, iteration)
    for damaged, taken in (("iter_000000030", "20"), ("iter_000000020", "10"), ("iter_000000010", "40")):
        (tmp_path / damaged / "model" / "__0_0.distcp").unlink()
        assert one.latest().name == f"iter_0000000{taken}"
    assert "iter_000000040 is later than iter_000000030: the run had gone back from it" in messages(caplog)


def test_a_save_that_is_not_to_retire_removes_nothing(tmp_path: Path) -> None:
    one = checkpointer(tmp_path, keep_latest_k=1)
    save(one, 1)
    one.save(2, {"model": weights(2)}, retire=False)
    assert len(list(tmp_path.glob("iter_*"))) == 2
    save(one, 3)
    assert [path.name for path in tmp_path.glob("iter_*")] == ["iter_000000003"]


def test_what_a_run_that_goes_back_will_lose_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = checkpointer(tmp_path, keep_latest_k=3)
    for iteration in (1, 2, 3):
        save(one, iteration)
    one.latest()
    assert "goes back" not in messages(caplog)
    (tmp_path / POINTER).write_text("iter_000000001\n")
    one.latest()
    assert "removes what is later: iter_000000002, iter_000000003 (checkpoint.keep_latest_k = 3)" in messages(caplog)
    checkpointer(tmp_path).latest()
    assert messages(caplog).count("goes back") == 1


def test_a_checkpoint_that_another_process_reads_stays_until_it_has_read_it(tmp_path: Path) -> None:
    """As an export does beside a run that trains."""
    one = checkpointer(tmp_path, keep_latest_k=1)
    save(one, 1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        found = find_latest(tmp_path, World(), weights_only=True)
        os.write(write, found.name[-1:].encode())
        signal.pause()
    assert os.read(read, 1) == b"1"
    save(one, 2)
    assert find_damage(tmp_path / "iter_000000001") is None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    save(one, 3)
    assert [path.name for path in tmp_path.glob("iter_*")] == ["iter_000000003"]


def test_a_checkpoint_that_is_removed_while_it_is_chosen_gives_way_to_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = checkpointer(tmp_path)
    save(one, 1)
    look = folders.candidates

    def look_and_train_on(parent: Path) -> object:
        found = look(parent)
        if not (parent / "iter_000000002").exists():
            save(one, 2)
            shutil.rmtree(parent / "iter_000000001")
        return found

    monkeypatch.setattr(folders, "candidates", look_and_train_on)
    assert find_latest(tmp_path, World()).name == "iter_000000002"
    release_leases()


def test_a_folder_that_was_moved_is_not_made_anew_by_a_save(tmp_path: Path) -> None:
    one = checkpointer(tmp_path / "run" / "checkpoints")
    save(one, 1)
    (tmp_path / "run").rename(tmp_path / "away")
    with pytest.raises(SaveError, match="No such file or directory"):
        save(one, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["away"]


def test_what_torch_makes_anew_where_the_folder_was_is_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is moved between the look at it and torch's writing, which makes all folders that it needs."""
    whole = dcp.save_part

    def move_and_save(folder: Path, *args: object, **settings: object) -> None:
        if not (tmp_path / "away").exists():
            (tmp_path / "run").rename(tmp_path / "away")
        whole(folder, *args, **settings)

    one = checkpointer(tmp_path / "run" / "checkpoints")
    monkeypatch.setattr(dcp, "save_part", move_and_save)
    with pytest.raises(SaveError, match="it was moved while it was written"):
        one.save(1, {"model": weights(1)}, texts={"config.yaml": "x: 1"})
    assert [path.name for path in tmp_path.iterdir()] == ["away"]
