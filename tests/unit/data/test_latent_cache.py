from __future__ import annotations

import errno
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from worldsmith.data.clips.frame_selection import FrameSelection
from worldsmith.data.clips.window_index import Window
from worldsmith.data.latent_cache import LatentCache, file_identity
from worldsmith.data.video_decoder import FileStatus


@pytest.fixture
def cache(tmp_path: Path) -> LatentCache:
    return LatentCache(tmp_path / "cache", "vae-1")


def test_what_is_stored_comes_back_bit_for_bit(cache: LatentCache) -> None:
    latents = torch.randn(48, 5, 4, 4)
    latents[0, 0, 0, 0] = float("nan")
    key = cache.key_for(a=1)
    assert cache.get(key) is None
    cache.put(key, latents)
    assert torch.equal(cache.get(key, (5, 4, 4)).view(torch.int32), latents.view(torch.int32))
    assert cache.corrupt == 0
    assert Path(cache.path_for(key)).parent.name == key[:2]


def test_a_file_address_is_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = LatentCache(f"file://{tmp_path}/cache", "vae-1")
    cache.put(cache.key_for(a=1), torch.zeros(1, 1, 2, 2))
    assert cache.has(cache.key_for(a=1))
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_each_fact_and_the_vae_change_the_key(tmp_path: Path, cache: LatentCache) -> None:
    base = {"file": ["a.mp4", 10, 20], "window": [0, 16, 1], "frames": [0, 1, 17], "size": [64, 64]}
    variants = [
        {}, {"file": ["b.mp4", 10, 20]}, {"file": ["a.mp4", 11, 20]}, {"file": ["a.mp4", 10, 21]},
        {"window": [0, 15, 1]},
        {"frames": [0, 2, 17]}, {"frames": [1, 1, 17]}, {"frames": [0, 1, 13]}, {"size": [64, 96]},
    ]  # fmt: skip
    keys = [cache.key_for(**{**base, **v}) for v in variants] + [LatentCache(tmp_path, "vae-2").key_for(**base)]
    assert len(set(keys)) == len(keys)
    assert cache.key_for(**base) == LatentCache(tmp_path / "elsewhere", "vae-1").key_for(**dict(reversed(base.items())))


WINDOW = Window("a_w0", "/clips/a.mp4", "a.mp4", 3, 99, 2, {"long": "A ball."}, 1, "mark")
STATUS = FileStatus(4096, 1_700_000_000_000_000_000)
SELECTION = FrameSelection(3, 2, 17)


def test_the_keys_of_clips_stay_those_of_existing_caches(cache: LatentCache) -> None:
    whole, opening = "86462665493cf52040bc0d55c76d3e2d", "21e0eb8c2c01ee28085b6fc73fb4e85c"
    assert cache.clip_key(WINDOW, STATUS, SELECTION, (64, 96), 17).startswith(whole)
    assert cache.clip_key(WINDOW, STATUS, SELECTION, (64, 96), 1, 17).startswith(opening)


def test_whatever_changes_the_latents_of_a_clip_changes_its_key(tmp_path: Path, cache: LatentCache) -> None:
    keys = {cache.clip_key(WINDOW, STATUS, SELECTION, (64, 96), *counts) for counts in ((17,), (1,), (1, 17))}
    changes = (
        {"relative_path": "b.mp4"},
        {"start_frame": 4},
        {"end_frame": 98},
        {"temporal_interval": 1},
        {"mark": "x"},
    )
    keys |= {cache.clip_key(replace(WINDOW, **change), STATUS, SELECTION, (64, 96), 17) for change in changes}
    keys |= {
        cache.clip_key(WINDOW, status, SELECTION, (64, 96), 17)
        for status in (FileStatus(1, STATUS[1]), FileStatus(4096, 1))
    }
    moved = FrameSelection(4, 2, 17), FrameSelection(3, 1, 17)
    keys |= {cache.clip_key(WINDOW, STATUS, selection, (64, 96), 17) for selection in moved}
    keys |= {cache.clip_key(WINDOW, STATUS, SELECTION, (64, 64), 17)}
    keys |= {LatentCache(tmp_path, "vae-2").clip_key(WINDOW, STATUS, SELECTION, (64, 96), 17)}
    assert len(keys) == 14
    same = replace(WINDOW, path="/moved/a.mp4", captions={}, key="b_w1", line=None)
    assert cache.clip_key(same, STATUS, SELECTION, (64, 96), 17) in keys


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text"])
def test_a_damaged_file_is_a_miss_that_is_counted_and_can_be_written_anew(cache: LatentCache, damage: str) -> None:
    """A flipped bit in the values included, which the file format itself does not notice."""
    latents = torch.randn(48, 2, 4, 4)
    key = cache.key_for(a=1)
    cache.put(key, latents)
    path = Path(cache.path_for(key))
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:-100]), "empty": b"", "text": b"hello"}[damage])
    assert cache.get(key) is None
    assert cache.corrupt == 1
    cache.put(key, latents)
    assert torch.equal(cache.get(key), latents)


def test_another_shape_than_expected_is_damage(cache: LatentCache) -> None:
    key = cache.key_for(a=1)
    cache.put(key, torch.zeros(48, 2, 4, 4))
    assert cache.get(key, (2, 4, 6)) is None
    assert cache.corrupt == 1


def test_a_write_that_fails_leaves_nothing_visible(cache: LatentCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is killed between writing and renaming: no file under the key, and old leftovers are swept later."""
    key, latents = cache.key_for(a=1), torch.zeros(48, 1, 2, 2)
    monkeypatch.setattr(os, "replace", lambda *paths: os.kill(os.getpid(), signal.SIGKILL))
    child = os.fork()
    if child == 0:
        cache.put(key, latents)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert cache.get(key) is None
    (left,) = cache.incoming.iterdir()
    LatentCache(cache.folder, "vae-1")
    assert left.exists()
    os.utime(left, (time.time() - 7200,) * 2)
    LatentCache(cache.folder, "vae-1")
    assert not left.exists()


@pytest.mark.parametrize("blocked", ["the whole cache", "later", "while reading"])
def test_a_cache_that_cannot_be_written_is_said_once_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, blocked: str
) -> None:
    """Where folders should be there are files, which stops even a superuser: from the start (said at once), or from
    some point on. What was stored is still read, and what was not written is counted."""
    folder, latents = tmp_path / "cache", torch.zeros(48, 1, 2, 2)
    if blocked == "the whole cache":
        folder.write_text("no folder")
    cache = LatentCache(folder, "vae-1")
    assert len(caplog.records) == (blocked == "the whole cache")
    if blocked == "later":
        cache.put("1" * 64, latents)
        (folder / "incoming").rmdir()
        (folder / "incoming").write_text("no folder")
    if blocked == "while reading":
        (folder / "22").mkdir(parents=True)
        Path(cache.path_for("2" * 64)).mkdir()  # neither a file of latents nor something that can be removed as one
        (folder / "incoming").rmdir()
        (folder / "incoming").write_text("no folder")
    for key in ("2" * 64, "3" * 64, "2" * 64):
        assert cache.get(key) is None
        cache.put(key, latents)
    (line,) = [record.getMessage() for record in caplog.records if "cannot be" in record.getMessage()]
    assert str(folder) in line
    assert cache.unwritten == 3
    assert (cache.get("1" * 64) is not None) == (blocked == "later")


def test_a_disk_that_fills_up_leaves_no_part_of_a_file(
    cache: LatentCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Path, data: bytes) -> int:
        with open(self, "wb") as file:
            file.write(data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        cache.put("1" * 64, torch.zeros(48, 1, 2, 2))
    assert "No space left on device" in caplog.text
    assert not list(cache.incoming.iterdir())
    cache.put("1" * 64, torch.zeros(48, 1, 2, 2))
    assert cache.get("1" * 64) is not None
    assert cache.unwritten == 1


def test_a_rewritten_file_has_another_identity_a_moved_one_has_not(tmp_path: Path) -> None:
    file = tmp_path / "a.mp4"
    file.write_bytes(b"1")
    before = identity(file)
    moved = file.rename(tmp_path / "b.mp4")
    assert identity(moved) == before
    os.utime(moved, ns=(1, 1))
    assert identity(moved) != before


def test_another_file_of_the_same_size_and_time_has_another_identity(tmp_path: Path) -> None:
    """As after `cp -p` or `rsync -t`."""
    file = tmp_path / "a.mp4"
    seen = set()
    for content in (b"1" * 70_000, b"2" + b"1" * 69_999, b"1" * 69_999 + b"2", b"1" * 35_000 + b"2" + b"1" * 34_999):
        file.write_bytes(content)
        os.utime(file, ns=(1, 1))
        seen.add(json.dumps(identity(file)))
    assert len(seen) == 4


def identity(file: Path) -> list[Any]:
    return file_identity(file.stat(), str(file), "a.mp4")
