"""A checkpoint that is damaged is found and passed over, and the run says so."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from stored_checkpoints import checkpointer, messages, save

from worldsmith.checkpoint.run.find_checkpoint import POINTER
from worldsmith.checkpoint.sources.verify import has_checksums
from worldsmith.config.errors import UserError
from worldsmith.files import atomic
from worldsmith.files.checksum_manifest import find_damage


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


@pytest.mark.parametrize("text", [b"", b"iter_", b"\xff\xfe", b"../elsewhere\n"])
def test_a_spoiled_pointer_is_passed_over(tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    one = checkpointer(tmp_path)
    save(one, 10)
    newest = save(one, 20)
    (tmp_path / POINTER).write_bytes(text)
    assert one.latest() == newest
    assert f"skipped: {POINTER}" in messages(caplog)


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


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"files": []}',
        '{"files": {"a": 1}}',
        '{"files": {"a": ["x", "y"]}}',
        '{"files": {"a": [Infinity, 1]}}',
        "{",
    ],
)
def test_a_manifest_of_anything_else_is_damage(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    assert "manifest.json cannot be read" in str(find_damage(tmp_path))


def test_a_manifest_that_is_a_pipe_is_damage_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    assert "found a pipe or a device" in str(find_damage(tmp_path))
    assert has_checksums(tmp_path), "a manifest that cannot be read"
