"""The copy of a run folder in a store: which checkpoints are uploaded and downloaded, and what the messages contain."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

import pytest
from stored_checkpoints import checkpointer, messages, save, weights

from worldsmith.checkpoint.run import checkpoint_store
from worldsmith.checkpoint.run.checkpoint_store import Uploads, newest_stored, read_name, upload_checkpoints
from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.checkpoint.run.find_checkpoint import BEST_POINTER, POINTER, go_back_to_best, read_best
from worldsmith.checkpoint.sources.verify import find_checkpoint_damage
from worldsmith.config.errors import UserError
from worldsmith.config.sections import JobConfig
from worldsmith.distributed.world import World
from worldsmith.files import atomic

TEN, TWENTY = "iter_000000010", "iter_000000020"


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    settings = Checkpointer.Config(upload_to=f"memory://{tmp_path.name}")
    return Uploads(settings, JobConfig(), tmp_path / "run", World())


@pytest.fixture
def one(uploads: Uploads) -> Checkpointer:
    """Writes the checkpoints of the run: 10, the best one, and 20."""
    one = checkpointer(uploads.run_folder / "checkpoints")
    one.save(10, {"model": weights(10)}, is_best=True)
    save(one, 20)
    return one


def damage(checkpoint: Path) -> None:
    (checkpoint / "model/__0_0.distcp").write_bytes(b"")


def test_damaged_checkpoints_are_replaced_by_those_in_the_store(
    uploads: Uploads, one: Checkpointer, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (TEN, TWENTY):
        damage(one.folder / name)
    with pytest.raises(UserError, match=r"no checkpoint in .* is complete"):
        uploads.download(one.latest)
    for step in (10, 20):
        atomic.remove_folder(one.folder / f"iter_{step:09d}")
        one.save(step, {"model": weights(step)}, is_best=step == 10)
    upload_checkpoints(str(uploads.address), uploads.run_folder, [TWENTY], None, None)
    for name in (TEN, TWENTY):
        damage(one.folder / name)
    assert uploads.download(one.latest) == one.folder / TWENTY
    assert "no checkpoint in" in messages(caplog)
    assert [find_checkpoint_damage(one.folder / name, World()) for name in (TEN, TWENTY)] == [None, None]
    assert not [path for path in one.folder.iterdir() if path.name.startswith((atomic.SAVING, atomic.REMOVING))]


def test_an_intact_checkpoint_after_that_of_the_pointer_is_not_downloaded_again(
    uploads: Uploads, one: Checkpointer
) -> None:
    upload_checkpoints(str(uploads.address), uploads.run_folder, [TWENTY], None, None)
    (one.folder / POINTER).write_text(f"{TEN}\n")
    assert (uploads.download(one.latest), uploads.downloaded) == (one.folder / TEN, "")


def test_the_best_checkpoint_reaches_the_store_if_its_own_upload_was_lost(uploads: Uploads, one: Checkpointer) -> None:
    address = str(uploads.address)
    upload_checkpoints(address, uploads.run_folder, [TWENTY], 1, None)
    assert (newest_stored(address), read_name(address, BEST_POINTER)) == (TWENTY, TEN)
    other = uploads.run_folder.with_name("other")
    (other / "checkpoints").mkdir(parents=True)
    checkpoint_store.download_checkpoint(address, TWENTY, other)
    assert read_best(other / "checkpoints") == other / "checkpoints" / TEN


def test_the_record_of_uploads_waits_for_the_best_checkpoint(uploads: Uploads, one: Checkpointer) -> None:
    damage(one.folder / TEN)
    with pytest.raises(OSError, match="has changed since it was saved"):
        upload_checkpoints(str(uploads.address), uploads.run_folder, [TWENTY], 1, None)
    assert newest_stored(str(uploads.address)) == TWENTY, "it does not wait"
    assert not checkpoint_store.is_uploaded(one.folder / TWENTY, str(uploads.address))


def test_the_best_in_the_store_is_cleared_only_by_a_run_that_went_back(uploads: Uploads, one: Checkpointer) -> None:
    """A run folder without the pointer may be one to which only the newest checkpoint was copied."""
    address = str(uploads.address)
    upload_checkpoints(address, uploads.run_folder, [TWENTY], None, None)
    (one.folder / BEST_POINTER).unlink()
    upload_checkpoints(address, uploads.run_folder, [TWENTY], 1, None)
    assert read_name(address, BEST_POINTER) == TEN
    (one.folder / BEST_POINTER).write_text(f"{TWENTY}\n")
    upload_checkpoints(address, uploads.run_folder, [TWENTY], None, None)
    assert read_name(address, BEST_POINTER) == TWENTY
    go_back_to_best(one.folder, 10, best=5)
    assert read_best(one.folder) is None
    upload_checkpoints(address, uploads.run_folder, [TEN], None, None)
    assert read_name(address, BEST_POINTER) == ""


def test_a_skipped_checkpoint_is_not_logged_as_uploaded(uploads: Uploads, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert uploads._upload(TEN, retire=True) == ""
    assert "uploaded" not in caplog.text


def test_no_message_and_no_process_argument_contains_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = "ftp://me:secret@host/runs"
    uploads = Uploads(Checkpointer.Config(upload_to=address), JobConfig(), tmp_path, World())
    found: list[subprocess.CompletedProcess[str]] = []

    def run(words: list[str], **settings: object) -> subprocess.CompletedProcess[str]:
        assert "secret" not in " ".join(words)
        assert settings["input"] == uploads.address
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        (tmp_path / "checkpoints" / checkpoint_store.UPLOADED).write_text(f"{TEN} {uploads.address}\n")
        return found.pop()

    def fail(address: str) -> str:
        raise OSError(f"{address} names a file outside of its folder")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(subprocess, "run", run)
    found.append(subprocess.CompletedProcess([], 1, f"{address}/x differs\n", ""))
    found.append(subprocess.CompletedProcess([], 0, "", ""))
    assert uploads._upload(TEN, retire=True) == ""
    assert "secret" not in uploads._upload(TEN, retire=True)
    monkeypatch.setattr(checkpoint_store, "newest_stored", fail)
    with pytest.raises(UserError, match=r"ftp://host/runs.* cannot be downloaded: ftp://host/runs") as raised:
        uploads.download(lambda: None)
    assert "secret" not in f"{raised.value}{caplog.text}"
    assert "uploaded iter_000000010 to ftp://host/runs" in caplog.text
    assert "UPLOAD FAILED (1 so far): iter_000000010 to ftp://host/runs" in caplog.text
