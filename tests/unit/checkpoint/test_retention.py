"""Which checkpoints are removed, by whom and when, and which stay."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
from stored_checkpoints import checkpointer, messages, save, weights

from worldsmith.checkpoint.dcp import dcp_folder as dcp
from worldsmith.checkpoint.run import find_checkpoint
from worldsmith.checkpoint.run.find_checkpoint import POINTER, find_latest
from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.distributed.world import World
from worldsmith.files import atomic
from worldsmith.files.checksum_manifest import find_damage
from worldsmith.files.locks import release_leases


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


def test_a_run_that_went_back_does_not_fall_into_what_it_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """To 40, back to 20 by the pointer, on to 30, which is damaged: 20 is next, then 10, and 40 only as the last."""
    one = checkpointer(tmp_path)
    for iteration in (10, 20, 40, 30):
        save(one, iteration)
    for damaged, taken in (("iter_000000030", "20"), ("iter_000000020", "10"), ("iter_000000010", "40")):
        (tmp_path / damaged / "model" / "__0_0.distcp").unlink()
        assert one.latest().name == f"iter_0000000{taken}"
    assert (
        "iter_000000040 is used, although it is of a later step than iter_000000030, which latest_checkpoint.txt names "
        "as the latest checkpoint" in messages(caplog)
    )


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
    assert "the run resumes from" not in messages(caplog)
    (tmp_path / POINTER).write_text("iter_000000001\n")
    one.latest()
    assert "removes the later checkpoints: iter_000000002, iter_000000003 (checkpoint.keep_latest_k = 3)" in messages(
        caplog
    )
    checkpointer(tmp_path).latest()
    assert messages(caplog).count("the run resumes from") == 1


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
    look = find_checkpoint.list_candidates

    def look_and_train_on(parent: Path) -> object:
        found = look(parent)
        if not (parent / "iter_000000002").exists():
            save(one, 2)
            shutil.rmtree(parent / "iter_000000001")
        return found

    monkeypatch.setattr(find_checkpoint, "list_candidates", look_and_train_on)
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
    with pytest.raises(SaveError, match="the run folder was moved during the save"):
        one.save(1, {"model": weights(1)}, texts={"config.yaml": "x: 1"})
    assert [path.name for path in tmp_path.iterdir()] == ["away"]
