from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from worldsmith.data.clips.inspect_clips import summarize_dataset
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.stream.dataset_record import changed_samples, record_text
from worldsmith.data.stream.errors import DataError

GRID = LatentGrid(frames=4, pixels=16, patch=2)


def load(path: Path, **changes: object) -> VideoDataset:
    return VideoDataset.Config(**{"path": str(path), "min_frames": 5, **changes}).build()


def reasons(dataset: VideoDataset) -> dict[str, str]:
    return {r.key: r.reason for r in dataset.rejections}


def test_windows_are_flattened_with_numbered_keys(tmp_path: Path, write_jsonl: Callable, record: Callable) -> None:
    windows = [{"start_frame": s, "end_frame": s + 8, "temporal_interval": 2, "caption": "c"} for s in (0, 9)]
    dataset = load(write_jsonl(tmp_path, [record("a", t2w_windows=windows)]))
    assert [(w.key, w.start_frame, w.end_frame, w.temporal_interval) for w in dataset.windows] == [
        ("a_w0", 0, 8, 2),
        ("a_w1", 9, 17, 2),
    ]
    assert dataset.windows[0].path == str(tmp_path / "videos/a.mp4")
    assert dataset.windows[0].captions == {"caption": "c"}


def test_order_does_not_depend_on_the_order_of_lines(tmp_path: Path, write_jsonl: Callable, record: Callable) -> None:
    """Published order: by the SHA-256 of the uuid; "e" hashes to 3f79…, "b" to 3e23…, "a" to ca97…."""
    keys = ["a", "b", "e"]
    one = load(write_jsonl(tmp_path / "1", [record(k) for k in keys]))
    two = load(write_jsonl(tmp_path / "2", [record(k) for k in reversed(keys)]))
    assert [w.key for w in one.windows] == [w.key for w in two.windows] == ["b_w0", "e_w0", "a_w0"]
    assert one.fingerprint == two.fingerprint


def test_fingerprint_changes_with_a_caption_or_a_window(
    tmp_path: Path, write_jsonl: Callable, record: Callable
) -> None:
    base = load(write_jsonl(tmp_path / "1", [record("a")]))
    other = record("a")
    other["t2w_windows"][0]["caption"] = "another"
    assert load(write_jsonl(tmp_path / "2", [other])).fingerprint != base.fingerprint
    assert load(write_jsonl(tmp_path / "3", [record("a", frames=16)])).fingerprint != base.fingerprint


def test_a_clip_that_is_replaced_under_its_name_is_another_sample(
    tmp_path: Path, write_jsonl: Callable, record: Callable
) -> None:
    """Named as changed; a pipe in its place is not waited for."""
    file = write_jsonl(tmp_path, [record("a"), record("b")])
    clip = tmp_path / record("a")["vision_path"]
    clip.parent.mkdir(exist_ok=True, parents=True)
    clip.write_bytes(b"1")
    before = load(file)
    dataset_record = tmp_path / "record.txt"
    dataset_record.write_text(record_text(before))
    assert load(file).fingerprint == before.fingerprint
    clip.write_bytes(b"2")
    assert load(file).fingerprint != before.fingerprint
    assert changed_samples(dataset_record, load(file)) == ["samples with other content (1): a_w0"]
    clip.unlink()
    os.mkfifo(clip)
    assert load(file).fingerprint != before.fingerprint


def test_plain_and_gzip_files_and_folders_give_the_same_windows(
    tmp_path: Path, write_jsonl: Callable, record: Callable
) -> None:
    file = write_jsonl(tmp_path / "train", [record("a"), "", record("b")])
    packed = tmp_path / "packed" / "video_dataset_file.jsonl.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(file.read_bytes()))
    prints = {load(p).fingerprint for p in (file, tmp_path, tmp_path / "train", packed, packed.parent)}
    assert len(prints) == 1
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read to its end"):
        load(packed)


def test_every_unusable_line_and_window_is_listed_with_reason_and_line(
    tmp_path: Path, write_jsonl: Callable, record: Callable
) -> None:
    """One record of each kind; nothing is dropped without a trace and the sound one stays."""
    window = {"start_frame": 0, "end_frame": 16, "temporal_interval": 1}
    records = [
        record("good"),
        '{"uuid": "cut',
        "[1, 2]",
        json.dumps({"uuid": "nothing"}),
        record("numbered", vision_path=5),
        record("long", duration=61.01),
        record("small", width=40),
        record("silent", t2w_windows=[window]),
        record("short", frames=4),
        record("outside", t2w_windows=[{**window, "start_frame": -1, "caption": "c"}]),
        record("backwards", t2w_windows=[{**window, "start_frame": 30, "caption": "c"}]),
        record("beyond", nb_frames=17, t2w_windows=[{"start_frame": 17, "end_frame": 30, "caption": "c"}]),
        record("typed", t2w_windows=[{**window, "end_frame": "16", "caption": "c"}]),
        record("wrong", duration="long"),
        record("good", frames=9),
    ]
    dataset = load(write_jsonl(tmp_path, records), min_short_edge=48)
    name = Path(dataset.name).name
    assert [w.key for w in dataset.windows] == ["good_w0"]
    assert reasons(dataset) == {
        f"{name}:2": "bad_json", f"{name}:3": "bad_record", f"{name}:4": "bad_record", f"{name}:5": "bad_record",
        "long": "too_long", "small": "too_small", "silent_w0": "no_caption", "short_w0": "too_short",
        "outside_w0": "window_out_of_range", "backwards_w0": "window_out_of_range", "beyond_w0": "window_out_of_range",
        "typed_w0": "bad_record", f"{name}:14": "bad_record", f"{name}:15": "bad_record",
    }  # fmt: skip
    assert [r.line for r in dataset.rejections] == list(range(2, 16))


def test_a_line_that_is_not_utf8_is_bad_json(tmp_path: Path, write_jsonl: Callable, record: Callable) -> None:
    file = write_jsonl(tmp_path, [record("a")])
    file.write_bytes(file.read_bytes() + b'{"uuid": "\xff\xfe"}\n')
    assert list(reasons(load(file)).values()) == ["bad_json"]


@pytest.mark.parametrize("text", [r"\ud800", r"a \uDC00 b"])
def test_half_a_surrogate_pair_is_a_bad_record(
    tmp_path: Path, write_jsonl: Callable, record: Callable, text: str
) -> None:
    """JSON can write it, no tokenizer can read it; whole pairs are characters."""
    file = write_jsonl(tmp_path, [json.dumps(record("a")).replace("clip a", text), record("b")])
    (found,) = load(file).rejections
    assert (found.reason, found.line) == ("bad_record", 1)
    assert "half of a surrogate pair" in found.detail
    whole = write_jsonl(tmp_path, [json.dumps(record("a")).replace("clip a", r"\ud83d\ude00")])
    assert load(whole).windows[0].captions["caption"] == "\U0001f600"
    file.write_bytes(json.dumps(record("a")).encode().replace(b"clip a", b"\xed\xa0\x80") + b"\n")
    assert list(reasons(load(file)).values()) == ["bad_record"]


def test_a_nul_in_a_path_is_a_bad_record(tmp_path: Path, write_jsonl: Callable, record: Callable) -> None:
    file = write_jsonl(tmp_path, [record("a", vision_path="videos/a\0.mp4"), record("b")])
    assert [w.key for w in load(file).windows] == ["b_w0"]
    assert list(reasons(load(file)).values()) == ["bad_record"]


def test_the_default_limits_are_the_published_ones(tmp_path: Path, write_jsonl: Callable, record: Callable) -> None:
    """Windows below 61 frames and clips above 61 s are left out by default."""
    file = write_jsonl(
        tmp_path, [record("a", frames=60), record("b", frames=61), record("c", frames=61, duration=61.1)]
    )
    dataset = VideoDataset.Config(path=str(file)).build()
    assert [w.key for w in dataset.windows] == ["b_w0"]
    assert reasons(dataset) == {"a_w0": "too_short", "c": "too_long"}


def test_a_missing_file_is_an_error_that_names_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected train/video_dataset_file\.jsonl"):
        load(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        load(tmp_path / "absent")
    with pytest.raises(DataError, match=r"dataset\.path is empty"):
        VideoDataset.Config().build()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("resolution", "999", "resolution bucket"), ("frame_selection_mode", "random", "if samples are complete windows"),
     ("cfg_dropout_rate", 1.5, "at least 0 and at most 1"), ("num_video_frames", 0, "at least 1"),
     ("min_frames", 0, "at least 1"),
     ("conditioning_config", {"one": 1.0}, "conditioning_config"), ("conditioning_fps", 0.0, "below 1000, or -1")],
)  # fmt: skip
def test_contradicting_settings_are_refused_with_the_way_out(field: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        VideoDataset.Config(**{field: value}).check()


def test_summary_counts_records_windows_and_reasons_without_decoding_all(
    tmp_path: Path, write_clip: Callable, write_jsonl: Callable, record: Callable
) -> None:
    write_clip(tmp_path / "videos/good.mp4")
    file = write_jsonl(tmp_path, [record("good"), record("absent"), "{"])
    summary = summarize_dataset(load(file), GRID)
    assert (summary.records, summary.windows, summary.probed) == (3, 2, 2)
    assert summary.drops == {"bad_json": 1, "missing_file": 1}
    assert str(summary) == "3 records, 2 windows; skipped: bad_json 1, missing_file 1 (2 clips opened)"
    assert summarize_dataset(load(file), GRID, probe=1).probed == 1


def test_summary_foretells_clips_that_are_too_long_for_a_pack(
    tmp_path: Path, write_clip: Callable, write_jsonl: Callable, record: Callable
) -> None:
    write_clip(tmp_path / "videos/good.mp4")
    dataset = load(write_jsonl(tmp_path, [record("good")]))
    assert summarize_dataset(dataset, GRID, max_tokens=1000).drops == {}
    (found,) = summarize_dataset(dataset, GRID, max_tokens=20).rejections
    assert (found.key, found.reason) == ("good_w0", "over_token_cap")
    assert "max_sequence_length is 20" in found.detail
