"""A file that the operating system cannot read is a bad record, with its name and the system's words."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from read_errors import CODES, break_file, fail

from worldsmith.assets import asset_path
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.conversations.media_archives import unpacked
from worldsmith.data.json_records import read_lines, read_list
from worldsmith.data.latent_cache import LatentCache
from worldsmith.data.shards.addresses import part_address, read_clip
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.quarantine import Quarantine, Rejection
from worldsmith.tools.datasets.imports.caption_layouts import read_sidecars
from worldsmith.tools.datasets.imports.source_clips import Choices, Clip

REASONS = {errno.ENOENT: "missing_file"}
"""By error number; "unreadable" for all others."""


def video_loader(path: Path, run: Path, **changes: Any) -> VideoLoader:
    config = VideoLoader.Config(max_samples_per_batch=2, bad_samples_allowed=4, **changes)
    config.dataset.path, config.dataset.resolution, config.dataset.min_frames = str(path), "64", 5
    grid = LatentGrid(4, 16, 2)
    return config.build(grid=grid, tokenizer=lambda text: list(text.encode())[:20], quarantine=Quarantine(run))


def require_listed(run: Path, key: str, code: int) -> None:
    """The one sample that is left out is `key`, with the words of the error; a missing file has words of ours."""
    (entry,) = map(json.loads, (run / "quarantine.jsonl").read_text().splitlines())
    words = "exist" if code == errno.ENOENT else os.strerror(code)
    assert (entry["key"], entry["reason"]) == (key, REASONS.get(code, "unreadable"))
    assert words in entry["detail"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_clip_with_a_real_input_error_is_left_out(clips: Callable[..., Path], tmp_path: Path, workers: int) -> None:
    folder = clips(4)
    break_file(folder / "videos/c1.mp4")
    loader = video_loader(folder, tmp_path / "run", num_workers=workers)
    keys = {sample.key for pack in islice(loader, 6) for sample in pack}
    assert keys == {"c0_w0", "c2_w0", "c3_w0"}
    require_listed(tmp_path / "run", "c1_w0", errno.EIO)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("call", "passing"), [("stat", 0), ("open", 0), ("open", 1), ("open", 2)])
def test_a_clip_that_cannot_be_reached_is_left_out(
    clips: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str, passing: int
) -> None:
    """At whatever use it fails: when it is looked at, or when it is read."""
    folder = clips(4)
    fail(monkeypatch, folder / "videos/c1.mp4", code, call, passing=passing)
    loader = video_loader(folder, tmp_path / "run")
    assert {sample.key for pack in islice(loader, 6) for sample in pack} == {"c0_w0", "c2_w0", "c3_w0"}
    require_listed(tmp_path / "run", "c1_w0", code)


def chats(folder: Path, write_clip: Callable[..., Path]) -> Path:
    turns = [{"from": "human", "value": "Is it possible?"}, {"from": "gpt", "value": "no"}]
    for number in range(4):
        Image.new("RGB", (64, 64), (number, 0, 0)).save(folder / f"{number}.png")
    write_clip(folder / "4.mp4")
    media = [{"image": f"{number}.png"} for number in range(4)] + [{"video": "4.mp4"}]
    records = [{"id": f"r{number}", **shown, "conversations": turns} for number, shown in enumerate(media)]
    (folder / "annotations.json").write_text(json.dumps(records))
    return folder


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", ["1.png", "4.mp4"])
@pytest.mark.parametrize(("call", "passing"), [("stat", 1), ("open", 1), ("open", 2)])
def test_a_medium_of_a_conversation_that_cannot_be_reached_is_left_out(
    write_clip: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    name: str,
    call: str,
    passing: int,
) -> None:
    folder = chats(tmp_path, write_clip)
    fail(monkeypatch, folder / name, code, call, passing=passing)
    config = ChatLoader.Config(max_samples_per_batch=2, bad_samples_allowed=4)
    config.dataset = LlavaDataset.Config(path=str(folder))
    processor = ChatProcessor.Config().build(folder=asset_path("tiny_reasoner"))
    loader = config.build(processor=processor, quarantine=Quarantine(tmp_path / "run"))
    keys = {sample.key for pack in islice(loader, 8) for sample in pack}
    assert keys == {f"r{number}" for number in range(5)} - {f"r{name[0]}"}
    require_listed(tmp_path / "run", f"r{name[0]}", code)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", ["media.zip", "media.tar.gz"])
def test_an_archive_that_cannot_be_read_is_an_error_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, name: str
) -> None:
    import shutil

    (tmp_path / "files").mkdir()
    (tmp_path / "files/a.txt").write_text("a")
    ending = {"media.zip": "zip", "media.tar.gz": "gztar"}[name]
    archive = Path(shutil.make_archive(str(tmp_path / "media"), ending, tmp_path / "files"))
    fail(monkeypatch, archive, code, "open", passing=1)
    with pytest.raises(DataError, match=f"{name}.*{os.strerror(code)}"):
        unpacked(archive)


@pytest.mark.parametrize("code", CODES)
def test_a_part_of_a_shard_that_cannot_be_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    shard = tmp_path / "a.tar"
    shard.write_bytes(bytes(1024))
    fail(monkeypatch, shard, code, "open")
    with pytest.raises(ValueError, match="exist" if code == errno.ENOENT else os.strerror(code)) as caught:
        read_clip(part_address(str(shard), 0, 512))
    assert caught.value.reason == REASONS.get(code, "unreadable")


@pytest.mark.parametrize("code", CODES)
def test_a_data_set_file_that_cannot_be_read_is_an_error_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    lines, records = tmp_path / "a.jsonl", tmp_path / "a.json"
    lines.write_text("{}\n")
    records.write_text("[]")
    fail(monkeypatch, lines, code, "open")
    with pytest.raises(DataError, match=f"{lines} cannot be read.*{os.strerror(code)}"):
        list(read_lines(lines))
    fail(monkeypatch, records, code, "open")
    with pytest.raises(DataError, match=f"{records} cannot be read.*{os.strerror(code)}"):
        read_list(records)


def test_a_data_set_file_with_a_real_input_error_is_an_error_of_the_data(tmp_path: Path) -> None:
    break_file(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match=os.strerror(errno.EIO)):
        list(read_lines(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", ["stat", "open"])
def test_a_conversation_file_that_cannot_be_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    records = [{"id": f"r{n}", "media": "a.mp4", "conversation": f"{n}.json"} for n in range(2)]
    (tmp_path / "meta.json").write_text(json.dumps(records))
    for number in range(2):
        turns = [{"role": "user", "content": [{"type": "video", "video": "v"}]}, {"role": "assistant", "content": "no"}]
        (tmp_path / f"{number}.json").write_text(json.dumps(turns))
    fail(monkeypatch, tmp_path / "1.json", code, call)
    dataset = ManifestDataset.Config(path=str(tmp_path)).build()
    assert [entry.key for entry in dataset.entries] == ["r0"]
    (rejection,) = dataset.rejections
    assert rejection.reason == REASONS.get(code, "unreadable")
    assert "1.json" in rejection.detail
    assert os.strerror(code) in rejection.detail or code == errno.ENOENT


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", ["stat", "open"])
def test_a_caption_file_that_cannot_be_read_is_left_out_of_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    for name in ("a.mp4", "a.txt", "b.mp4", "b.txt"):
        (tmp_path / name).write_text("a caption")
    fail(monkeypatch, tmp_path / "b.txt", code, call)
    found = list(read_sidecars(tmp_path, Choices()))
    (rejection,) = (item for item in found if isinstance(item, Rejection))
    assert [item.path for item in found if isinstance(item, Clip)] == [tmp_path / "a.mp4"]
    assert rejection.key == "b"
    assert rejection.reason in ("unreadable", "bad_caption" if code == errno.ENOENT else "")
    assert os.strerror(code) in rejection.detail or "not a file" in rejection.detail


@pytest.mark.parametrize("code", CODES)
def test_latents_that_cannot_be_read_are_encoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    cache = LatentCache(tmp_path, "vae")
    cache.put("0" * 64, torch.zeros(2, 1, 2, 2))
    fail(monkeypatch, Path(cache.path_for("0" * 64)), code, "open")
    assert cache.look_up("0" * 64, (1, 2, 2)) == (None, "miss")
    if code != errno.ENOENT:
        assert os.strerror(code) in caplog.text


def test_latents_with_a_real_input_error_are_encoded_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = LatentCache(tmp_path, "vae")
    cache.put("0" * 64, torch.zeros(2, 1, 2, 2))
    break_file(Path(cache.path_for("0" * 64)))
    assert cache.look_up("0" * 64, (1, 2, 2))[0] is None
    assert caplog.text
