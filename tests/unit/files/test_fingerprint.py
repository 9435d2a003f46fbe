"""What a fingerprint notices, and what it leaves out."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from worldsmith.config.errors import UserError
from worldsmith.files import checksum_manifest
from worldsmith.files.checksum_manifest import list_files, summarize_files, write_manifest
from worldsmith.files.fingerprint import fingerprint


def make_folder(folder: Path) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "sub" / "model.safetensors").write_bytes(b"weights")
    (folder / "clip.mp4").write_bytes(b"frames")
    return folder


def make_checkpoint(folder: Path) -> Path:
    for name in ("model/a.distcp", "optim/b.distcp", "config.yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    write_manifest(folder, summarize_files(folder, list_files(folder)))
    return folder


def test_of_a_file_it_is_the_sha256_of_its_content(tmp_path: Path) -> None:
    file = tmp_path / "annotations.json"
    file.write_bytes(b"[1]")
    assert fingerprint(file) == f"sha256:{hashlib.sha256(b'[1]').hexdigest()}"


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda f: (f / "sub" / "model.safetensors").write_bytes(b"Weights"),
    "another name": lambda f: (f / "config.json").rename(f / "other.json"),
    "another place": lambda f: (f / "config.json").rename(f / "sub" / "config.json"),
    "a file more": lambda f: (f / "adapter_config.json").write_text("{}"),
    "a file less": lambda f: (f / "config.json").unlink(),
    "the size of a medium": lambda f: (f / "clip.mp4").write_bytes(b"more frames"),
}
NO_CHANGES: dict[str, Callable[[Path], object]] = {
    "times": lambda f: os.utime(f / "config.json", (1, 1)),
    "the record": lambda f: (f / "lineage.json").write_text("{}"),
    "the card": lambda f: (f / "README.md").write_text("measured"),
    "hidden files": lambda f: (f / ".cache").write_text("x"),
    "the bytes of a medium": lambda f: (f / "clip.mp4").write_bytes(b"FRAMES"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_folder_that_changes(tmp_path: Path, change: Callable[[Path], object]) -> None:
    folder = make_folder(tmp_path / "model")
    before = fingerprint(folder)
    change(folder)
    assert fingerprint(folder) != before


@pytest.mark.parametrize("change", NO_CHANGES.values(), ids=NO_CHANGES)
def test_what_does_not_count(tmp_path: Path, change: Callable[[Path], object]) -> None:
    folder = make_folder(tmp_path / "model")
    before = fingerprint(folder)
    change(folder)
    assert fingerprint(folder) == before


def test_a_copy_elsewhere_is_the_same(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    assert fingerprint(shutil.copytree(folder, tmp_path / "far" / "copy")) == fingerprint(folder)


def test_a_checkpoint_counts_by_its_manifest_and_without_its_training_state(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "iter_000000004")
    before = fingerprint(checkpoint)
    shutil.rmtree(checkpoint / "optim")
    assert fingerprint(checkpoint) == before
    (checkpoint / "model" / "a.distcp").write_bytes(b"changed!")
    assert fingerprint(checkpoint) != before, "a file of another size"
    (checkpoint / "model" / "a.distcp").unlink()
    with pytest.raises(UserError, match=r"model/a\.distcp is missing"):
        fingerprint(checkpoint)


def test_content_that_was_overwritten_counts_although_the_manifest_is_the_old_one(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "iter_000000004")
    before, file = fingerprint(checkpoint), checkpoint / "model" / "a.distcp"
    content = file.read_bytes()
    file.write_bytes(content[::-1])
    assert fingerprint(checkpoint) != before
    file.write_bytes(content)
    assert fingerprint(checkpoint) == before


def test_an_unchanged_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it was written a moment ago: a second change within one tick of the clock would not be noticed."""
    reads: list[str] = []
    digest = hashlib.file_digest

    def counted(stream: BinaryIO, name: str) -> Any:
        reads.append(stream.name)
        return digest(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    folder = make_folder(tmp_path / "model")
    assert fingerprint(folder) == fingerprint(folder)
    assert len(reads) == 4
    monkeypatch.setattr(checksum_manifest, "SETTLED", -1)
    assert fingerprint(folder) == fingerprint(folder) == fingerprint(folder)
    assert len(reads) == 6
    (folder / "config.json").write_text("[]", encoding="utf-8")
    fingerprint(folder)
    assert [Path(name).name for name in reads[6:]] == ["config.json"]


def test_a_run_folder_counts_as_its_latest_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("job: {}", encoding="utf-8")
    checkpoint = make_checkpoint(tmp_path / "checkpoints" / "iter_000000004")
    assert fingerprint(tmp_path) == fingerprint(tmp_path / "config.yaml")
    (tmp_path / "checkpoints" / "latest_checkpoint.txt").write_text(f"{checkpoint.name}\n")
    assert fingerprint(tmp_path) == fingerprint(checkpoint)


def test_a_manifest_of_another_program_is_a_file_like_others(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    before = fingerprint(folder)
    (folder / "manifest.json").write_text('{"files": ["config.json"]}', encoding="utf-8")
    assert fingerprint(folder) == before


def test_a_file_of_the_hub_cache_is_not_read(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / hashlib.sha256(b"weights").hexdigest()
    blob.parent.mkdir()
    blob.write_bytes(b"never read")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(blob)
    plain = tmp_path / "plain.safetensors"
    plain.write_bytes(b"weights")
    assert fingerprint(tmp_path / "snapshot" / "model.safetensors") == fingerprint(plain)
