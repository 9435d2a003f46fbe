"""`worldsmith dataset caption`: captions are the model's answers on the frames of each window, on all runners."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from reasoner_runs import write_smallest
from tiny_runs import moving_gradient

from worldsmith.cli.main import main
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.content_fingerprint import remote_fingerprint
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.stream.errors import SampleError
from worldsmith.files import remote
from worldsmith.sampling.generate_answers import Answer
from worldsmith.sampling.write_media import write_mp4
from worldsmith.tools.datasets.caption_clips import check_caption

WORDS = ["--max-new-tokens", "6", "--prompt", "What moves?", "--device", "cpu"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, and three clips: two windows, one window with an old caption, and a damaged file."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("captions")
    write_smallest(folder / "model")
    (folder / "clips").mkdir()
    windows: dict[str, list[dict[str, Any]]] = {
        "a": [{"start_frame": 0, "end_frame": 7}, {"start_frame": 8, "end_frame": -1, "temporal_interval": 1}],
        "b": [{"start_frame": 0, "end_frame": -1, "caption": "old", "caption_json": {"old": 1}}],
        "damaged": [{"start_frame": 0, "end_frame": -1, "caption": "old"}],
    }
    records = [{"uuid": name, "vision_path": f"{name}.mp4", "t2w_windows": each} for name, each in windows.items()]
    records[0]["note"] = "stays"
    (folder / "clips/video_dataset_file.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    for index, name in enumerate("ab"):
        write_mp4(folder / f"clips/{name}.mp4", moving_gradient(index, 16, 64, 64), 8)
    (folder / "clips/damaged.mp4").write_bytes(b"no video")
    return folder


@pytest.fixture(autouse=True)
def _inside(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)


def caption(out: str, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["dataset", "caption", "clips", "--model", "model", "-o", out, *WORDS, *words]) == code
    said = capsys.readouterr()
    return said.out if code == 0 else " ".join(said.err.split())


def captions(out: str) -> dict[str, list[Any]]:
    lines = Path(out, "video_dataset_file.jsonl").read_text().splitlines()
    return {record["uuid"]: record["t2w_windows"] for record in map(json.loads, lines)}


@pytest.fixture(scope="module")
def captioned(world: Path) -> dict[str, list[Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world)
        words = ["dataset", "caption", "clips", "--model", "model", "-o", "out", *WORDS, "--max-failures", "1"]
        assert main(words) == 0
        return captions("out")


def test_a_whole_clip_gets_the_answer_of_infer(
    captioned: dict[str, list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["infer", "model", "--video", "clips/b.mp4", *WORDS]) == 0
    assert captioned["b"] == [{"start_frame": 0, "end_frame": -1, "caption": capsys.readouterr().out.strip()}]


def test_windows_have_captions_of_their_own_frames(captioned: dict[str, list[Any]], tmp_path: Path) -> None:
    """The frames, and their times, are those of a file that contains only the window."""
    assert [window["start_frame"] for window in captioned["a"]] == [0, 8]
    assert all(window["caption"] for window in captioned["a"])
    media = ChatProcessor.Config().build(folder=Path("model")).media
    assert media is not None
    found = media.plan_video("clips/a.mp4", frames=(8, None))
    whole = media.plan_video("clips/a.mp4")
    every = media.read(replace(whole, indices=list(range(8, 16)), size=found.size))
    cut = replace(found, indices=list(range(8, 16)))
    assert np.array_equal(media.read(cut), every)
    short = tmp_path / "short.mp4"
    write_mp4(short, moving_gradient(0, 8, 64, 64), 8)
    alone = media.plan_video(str(short))
    assert [index - 8 for index in found.indices] == alone.indices
    assert (found.times, found.grid, found.seconds) == (alone.times, alone.grid, alone.seconds)
    with pytest.raises(SampleError, match="it has 16 frames, not those from 8 to 16"):
        media.plan_video("clips/a.mp4", frames=(8, 17))


def test_the_new_file_is_a_dataset(captioned: dict[str, list[Any]]) -> None:
    """Its clips stay in place, other facts of the records are kept, and old captions are not."""
    dataset = VideoDataset.Config(path="out", min_frames=1).build()
    assert sorted(window.key for window in dataset.windows) == ["a_w0", "a_w1", "b_w0"]
    assert {window.path for window in dataset.windows} == {str(Path(f"clips/{name}.mp4").resolve()) for name in "ab"}
    assert json.loads(Path("out/video_dataset_file.jsonl").read_text().splitlines()[0])["note"] == "stays"
    assert json.loads(Path("out/video_dataset_file.jsonl.lineage.json").read_text())["action"] == "caption"


def test_videos_without_captions_are_imported_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "videos").mkdir()
    write_mp4(tmp_path / "videos/one.mp4", moving_gradient(0, 16, 64, 64), 8)
    clips, out = str(tmp_path / "clips"), str(tmp_path / "out")
    words = ["--layout", "sidecar", "--caption", "missing", "--window-frames", "8"]
    assert main(["dataset", "import", str(tmp_path / "videos"), "-o", clips, *words]) == 0
    assert main(["dataset", "caption", clips, "--model", "model", "-o", out, *WORDS]) == 0
    assert "2 windows of 1 clips have captions" in capsys.readouterr().out
    (windows,) = captions(out).values()
    assert [(window["start_frame"], window["end_frame"]) for window in windows] == [(0, 7), (8, 15)]
    assert "missing" not in str(windows)


def test_failures_end_the_command_and_captions_are_kept(
    captioned: dict[str, list[Any]], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    said = caption("strict", capsys, "--batch-size", "1", code=2)
    assert "damaged_w0: " in caplog.text
    assert "1 sample cannot be captioned (see above), 0 are allowed" in said
    assert not Path("strict/video_dataset_file.jsonl").exists()
    said = caption("strict", capsys, "--max-failures", "1")
    assert "3 windows of 2 clips have captions, 3 of them from an earlier start" in said
    assert "skipped damaged_w0: " in said
    assert captions("strict") == captioned


def test_processes_share_the_windows(captioned: dict[str, list[Any]], capsys: pytest.CaptureFixture[str]) -> None:
    caption("two", capsys, "--processes", "2", "--batch-size", "1", "--max-failures", "1")
    assert captions("two") == captioned


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ray_gives_the_same_captions(captioned: dict[str, list[Any]], capsys: pytest.CaptureFixture[str]) -> None:
    caption("ray", capsys, "--on", "ray", "--batch-size", "1", "--max-failures", "1")
    assert captions("ray") == captioned


def test_a_changed_prompt_or_model_is_not_mixed_with_earlier_captions(
    captioned: dict[str, list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["dataset", "caption", "clips", "--model", "model", "-o", "out", *WORDS, "--max-failures", "1"]
    assert main([*words, "--temperature", "1"]) == 2
    assert "generated with other settings: temperature was 0.0" in capsys.readouterr().err
    assert main([*words, "--prompt", "What stands still?"]) == 0
    assert ", 0 of them from an earlier start" in capsys.readouterr().out


def test_failures_of_all_processes_count_together(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each process has one, and one is allowed."""
    Path("twice").mkdir()
    line = Path("clips/video_dataset_file.jsonl").read_text().splitlines()[-1]
    lines = [json.dumps({**json.loads(line), "uuid": name, "vision_path": "../clips/damaged.mp4"}) for name in "xy"]
    Path("twice/video_dataset_file.jsonl").write_text("\n".join(lines))
    words = ["--model", "model", "-o", "out_twice", *WORDS, "--processes", "2", "--batch-size", "1"]
    assert main(["dataset", "caption", "twice", *words, "--max-failures", "1"]) == 2
    assert "2 samples cannot be captioned (see above), 1 are allowed" in " ".join(capsys.readouterr().err.split())


def test_a_dataset_of_another_command_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    Path("other").mkdir()
    Path("other/video_dataset_file.jsonl").write_text("")
    assert "belongs to another command: choose another folder, or use --force" in caption("other", capsys, code=2)
    assert Path("other/video_dataset_file.jsonl").read_text() == ""


def test_clips_in_a_store_get_the_captions_of_those_on_disk(
    captioned: dict[str, list[Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A second start captions nothing again; a clip that was replaced in the store is captioned again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    memory = fsspec.filesystem("memory")
    for file in Path("clips").iterdir():
        memory.pipe_file(f"/clips/{file.name}", file.read_bytes())
    words = ["dataset", "caption", "memory://clips", "--model", "model", "-o", "far", *WORDS, "--max-failures", "1"]
    assert main(words) == 0
    assert captions("far") == captioned
    lines = map(json.loads, Path("far/video_dataset_file.jsonl").read_text().splitlines())
    assert [line["vision_path"] for line in lines] == ["memory://clips/a.mp4", "memory://clips/b.mp4"]
    capsys.readouterr()
    assert main(words) == 0
    assert "3 of them from an earlier start" in capsys.readouterr().out
    memory.pipe_file("/clips/b.mp4", Path("clips/a.mp4").read_bytes())
    remote.remote_facts.cache_clear()
    remote_fingerprint.cache_clear()
    assert main(words) == 0
    assert "2 of them from an earlier start" in capsys.readouterr().out


def test_mistakes_are_reported_before_the_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert "choose another" in caption("clips", capsys, code=2)
    assert "add --on ray" in caption("x", capsys, "--record-timeout", "3", code=2)
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("form", "said", "text", "error"),
    [
        ("text", "<think>hm</think> A red ball. ", "A red ball.", ""),
        ("text", " <think>hm</think> ", "", "empty"),
        ("json", '```json\n{"subjects": []}\n```', '{"subjects": []}', ""),
        ("json", "<think>{}</think>{\"a\": 1}", '{"a": 1}', ""),
        ("json", "A red ball.", "", "not a JSON object"),
        ("json", '{"a": ', "", "not a JSON object"),
        ("json", "[1]", "", "not a JSON object"),
        ("json", "{}", "", "not a JSON object"),
    ],
)  # fmt: skip
def test_a_caption_has_the_form_that_was_asked_for(form: str, said: str, text: str, error: str) -> None:
    found = check_caption(Answer("a", said), form)
    assert found.text == text
    assert error in found.error
    assert bool(found.error) == (not text)
