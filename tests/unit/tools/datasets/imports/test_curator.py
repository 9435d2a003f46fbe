"""The output of cosmos-curate's splitting pipeline is imported as the converter of cosmos-framework does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from import_sources import clip, write

from worldsmith.cli.main import main
from worldsmith.data.clips.video_dataset import VideoDataset


def record(uuid: str, location: Path | str, windows: list[dict[str, Any]], **others: Any) -> dict[str, Any]:
    stated = {
        "width": 96,
        "height": 64,
        "num_frames": 9,
        "framerate": 8.0,
        "duration_span": [0.0, 1.125],
        "valid": True,
    }
    return {"span_uuid": uuid, "source_video": "in.mp4", "clip_location": str(location), **stated, "windows": windows,
            **others}  # fmt: skip


WINDOWS = [
    {"start_frame": 0, "end_frame": 4, "qwen_caption": "plain", "qwen_lm_enhanced_caption": "better"},
    {"start_frame": 5, "end_frame": 8, "qwen_caption": "the end", "nemotron_caption": "the other end"},
    {"start_frame": 0, "end_frame": 8, "qwen_caption": " "},
]
ENDS = {"start_frame": 0, "end_frame": 8}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """One clip with windows, one that is filtered out, one in a store, one that was moved, and damaged records."""
    source = tmp_path / "curated"
    for folder, name in (("clips", "a"), ("clips", "moved"), ("filtered_clips", "bad")):
        clip(source / folder / f"{name}.mp4")
    plain = [{**ENDS, "qwen_caption": "far away"}]
    lines = [
        record("a", source / "clips/a.mp4", WINDOWS, motion_score={"global_mean": 0.5}),
        record("bad", source / "filtered_clips/bad.mp4", plain),
        record("far", "s3://bucket/clips/far.mp4", plain),
        record("moved", "/config/output/clips/moved.mp4", plain),
        record("none", source / "clips/a.mp4", []),
        record("wrong", source / "clips/a.mp4", [{"start_frame": 3, "end_frame": 1, "qwen_caption": "?"}]),
    ]
    texts = [json.dumps(line) for line in lines]
    write(source / "metas_jsonl/v0/video_0.jsonl", "\n".join([*texts[:3], "{", ""]))
    write(source / "metas_jsonl/v0/video_1.jsonl", "\n".join(texts[3:]))
    return source


def imported(source: Path, *words: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The records by uuid, the skipped clips by key, and what the command says."""
    out = source.parent / "out"
    assert main(["dataset", "import", str(source), "-o", str(out), *words]) == 0
    lines = [json.loads(line) for line in (out / "train/video_dataset_file.jsonl").read_text().splitlines()]
    left_out = [json.loads(line) for line in (out / "left_out.jsonl").read_text().splitlines()]
    return {one["uuid"]: one for one in lines}, {one["key"]: one["reason"] for one in left_out}, list(VideoDataset(
        VideoDataset.Config(path=str(out), min_frames=1)).windows)  # fmt: skip


def test_windows_and_captions(source: Path) -> None:
    records, left_out, windows = imported(source)
    ends = {"temporal_interval": 1}
    assert records["a"] == {
        "uuid": "a", "vision_path": "../../curated/clips/a.mp4", "duration": 9 / 8, "framerate": 8.0,
        "nb_frames": 9, "width": 96, "height": 64,
        "t2w_windows": [
            {"start_frame": 0, "end_frame": 4, **ends, "caption": "better"},
            {"start_frame": 5, "end_frame": 8, **ends, "caption": "the other end"},
        ],
    }  # fmt: skip
    assert records["far"]["vision_path"] == "s3://bucket/clips/far.mp4"
    assert (records["far"]["nb_frames"], records["far"]["width"]) == (9, 96)
    assert records["moved"]["vision_path"] == "../../curated/clips/moved.mp4"
    assert left_out == {
        "video_0.jsonl:2": "filtered", "video_0.jsonl:4": "bad_json", "a": "no_caption",
        "video_1.jsonl:2": "bad_record", "wrong_w0": "bad_record",
    }  # fmt: skip
    assert len(windows) == 4


def test_a_preferred_caption_and_windows_that_are_cut(source: Path) -> None:
    records, _, _ = imported(source / "metas_jsonl/v0", "--caption-column", "qwen_caption", "--window-frames", "4")
    found = [(one["start_frame"], one["end_frame"], one["caption"]) for one in records["a"]["t2w_windows"]]
    assert found == [(0, 3, "plain"), (4, 4, "plain"), (5, 8, "the end")]
    assert "moved" in records  # found in the clips of the output folder


def test_a_preferred_caption_that_no_window_has_is_refused(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dataset", "import", str(source), "-o", str(source.parent / "out"), "--caption-column", "qwen"]) == 2
    keys = "nemotron_caption, qwen_caption, qwen_lm_enhanced_caption"
    assert f"has no captions under qwen; select one of {keys}" in capsys.readouterr().err


def test_scenes_are_not_searched_in_a_store(source: Path) -> None:
    _, left_out, _ = imported(source, "--cut", "scenes")
    assert left_out["far"] == "remote_path"


def test_one_record_per_file(tmp_path: Path) -> None:
    clip(tmp_path / "curated/clips/a.mp4")
    text = json.dumps(record("a", tmp_path / "curated/clips/a.mp4", WINDOWS[:1]), indent=4)
    write(tmp_path / "curated/metas/v0/a.json", text)
    records, left_out, _ = imported(tmp_path / "curated")
    assert [window["caption"] for window in records["a"]["t2w_windows"]] == ["better"]
    assert left_out == {}
