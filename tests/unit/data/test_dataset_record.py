"""What has changed in a data set is told in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.stream.dataset_record import changed_samples, record_text


def dataset(folder: Path) -> VideoDataset:
    return VideoDataset.Config(path=str(folder), min_frames=1).build()


def test_gone_new_and_changed_samples_are_named(tmp_path: Path, write_jsonl: Callable, record: Callable) -> None:
    before = dataset(write_jsonl(tmp_path / "a", [record("a"), record("b"), record("c"), record("d")]))
    listed = tmp_path / "dataset_windows.txt"
    listed.write_text(record_text(before))
    assert changed_samples(listed, before) == []
    other = record("b")
    other["t2w_windows"][0]["caption"] = "another caption"
    after = dataset(write_jsonl(tmp_path / "b", [record("a"), other, record("e")]))
    assert changed_samples(listed, after) == [
        "samples gone (2): c_w0, d_w0",
        "samples new (1): e_w0",
        "samples with other content (1): b_w0",
    ]
    assert changed_samples(tmp_path / "nothing.txt", after) == []
