"""Folders appear complete, one writer at a time, and a kill between two names loses none of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from worldsmith.files import atomic


def make(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "file").write_text(text)
    return folder


def test_a_kill_between_hide_and_rename_is_mended_by_the_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make(tmp_path / "out", "old")

    def killed_writer() -> None:
        replace, calls = os.replace, []

        def die_at_the_second(*paths: Path) -> None:
            calls.append(paths)
            if len(calls) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(*paths)

        monkeypatch.setattr(os, "replace", die_at_the_second)
        with atomic.locked_temporary_folder(target) as aside:
            (aside / "file").write_text("new")
            atomic.publish_folder(aside, target)

    child = multiprocessing.get_context("fork").Process(target=killed_writer)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not target.exists()
    with atomic.locked_temporary_folder(target) as aside:
        assert (target / "file").read_text() == "old"
        (aside / "file").write_text("newer")
        atomic.publish_folder(aside, target)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (target / "file").read_text() == "newer"


def test_two_writers_do_not_share_a_folder(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with atomic.locked_temporary_folder(target) as aside:
        (aside / "file").write_text("first")
        with (
            pytest.raises(FileExistsError, match="is being written by another process"),
            atomic.locked_temporary_folder(target),
        ):
            pass
        assert (aside / "file").exists()
        atomic.publish_folder(aside, target)
    with atomic.locked_temporary_folder(target) as aside:
        (aside / "file").write_text("second")
        with pytest.raises(FileExistsError, match="written by another process in the meantime"):
            atomic.publish_folder(aside, target, replace=False)
    assert (target / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_another_writer_has_begun_after_publishing_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with atomic.locked_temporary_folder(target) as aside:
        atomic.publish_folder(aside, target)
        make(aside, "of another process")
    assert (aside / "file").read_text() == "of another process"


def test_a_folder_that_another_writer_takes_before_it_is_locked_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = atomic.lock

    def lock_late(path: Path) -> int | None:
        handle = lock(path)
        path.rename(tmp_path / "taken")  # as the other process does when it removes what it takes for a leftover
        make(path, "of another process")
        return handle

    monkeypatch.setattr(atomic, "lock", lock_late)
    with (
        pytest.raises(FileExistsError, match="is being written"),
        atomic.locked_temporary_folder(tmp_path / "out") as aside,
    ):
        raise AssertionError(aside)
    (aside,) = tmp_path.glob(f"{atomic.SAVING}*")
    assert (aside / "file").read_text() == "of another process"
