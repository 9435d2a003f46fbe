"""What has changed in a data set is told in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from worldsmith.data.clips.dataset_record import changed_windows, record_text
from worldsmith.data.clips.video_dataset import VideoDataset


def dataset(folder: Path) -> VideoDataset:
    return VideoDataset.Config(path=str(folder), min_frames=1).build()


def test_gone_new_and_changed_windows_are_named(tmp_path: Path, write_jsonl: Callable, record: Callable) -> None:
    before = dataset(write_jsonl(tmp_path / "a", [record("a"), record("b"), record("c"), record("d")]))
    listed = tmp_path / "dataset_windows.txt"
    listed.write_text(record_text(before))
    assert changed_windows(listed, before) == []
    other = record("b")
    other["t2w_windows"][0]["caption"] = "another caption"
    after = dataset(write_jsonl(tmp_path / "b", [record("a"), other, record("e")]))
    assert changed_windows(listed, after) == [
        "windows gone (2): c_w0, d_w0",
        "windows new (1): e_w0",
        "windows with other captions, frames or path (1): b_w0",
    ]
    assert changed_windows(tmp_path / "nothing.txt", after) == []
