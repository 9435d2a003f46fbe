"""Preparing VideoPhy-2 from a server: resumable, with its scores, and never with conversations of other settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from web_server import Web, serving

from worldsmith.cli.main import main
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.tools.datasets.videophy2 import (
    PHYSICS,
    ConversationSettings,
    PreparedSplit,
    answer_text,
    prepare,
    prompt_text,
)

TABLE = "/datasets/videophysics/videophy2_train/resolve/main/videophy2_training.csv"
TEST_TABLE = "/datasets/videophysics/videophy2_test/resolve/main/videophy2_test.csv"


@pytest.fixture
def web(tmp_path: Path, write_clip: Callable) -> Iterator[Web]:
    """Five rows: one whose clip is gone, one without a score, a clip that comes at the second attempt."""
    clip = write_clip(tmp_path / "clip.mp4").read_bytes()
    with serving({"/1.mp4": clip, "/2.mp4": [404], "/3.mp4": clip, "/4.mp4": [503, clip], "/5.mp4": clip}) as web:
        rows = [("4", "1", "A ball falls"), ("2", "0", "b"), ("none", "0", "c"), ("1.0", "1", ""), ("5", "0", 'e, "f"')]
        lines = [
            f'{web.url}/{number}.mp4,{pc},3,{joint},"{caption.replace(chr(34), chr(34) * 2)}",plain {number}'
            for number, (pc, joint, caption) in enumerate(rows, start=1)
        ]
        text = "\n".join(["video_url,pc,sa,joint,upsampled_caption,caption", *lines]) + "\n"
        web.pages[TABLE] = web.pages[TEST_TABLE] = text.encode().replace(b"A ball", b"A b\xe4ll")
        yield web


def make(root: Path, web: Web, *, score_field: Any = "pc", caption_field: str = "", **settings: Any) -> PreparedSplit:
    wanted = ConversationSettings("videophysics/videophy2_train", score_field, caption_field, "video_0")
    return prepare(root, "train", wanted, endpoint=web.url, workers=2, pause=0.0, **settings)


def test_the_layout(tmp_path: Path, web: Web) -> None:
    made = make(tmp_path, web)
    assert (made.records, made.downloaded) == (3, 3)
    folder = tmp_path / "videophy2_train"
    meta = json.loads((folder / "meta.json").read_text())
    assert meta[0] == {
        "id": "conversation_0001", "media": "media/video_0001.mp4", "conversation": "text/conversation_0001.json",
    }  # fmt: skip
    assert [record["id"][-1] for record in meta] == ["1", "4", "5"]
    assert json.loads((folder / "text" / "conversation_0001.json").read_text()) == {
        "conversations": [
            {"role": "user", "content": [{"type": "video", "video": "video_0"}, {"type": "text", "text": PHYSICS}]},
            {"role": "assistant", "content": [{"type": "text", "text": "4"}]},
        ]
    }
    failed = {line["id"]: line["error"] for line in map(json.loads, (folder / "failed.jsonl").read_text().splitlines())}
    assert set(failed) == {"conversation_0002", "conversation_0003"}
    assert "404" in failed["conversation_0002"]
    assert failed["conversation_0003"] == "bad_score: column pc holds 'none'"
    dataset = ManifestDataset.Config(path=str(folder)).build()
    assert dataset.rejections == []
    assert [dataset.turns(index)[1].text for index in range(3)] == ["4", "1", "5"]
    assert all(Path(str(dataset.turns(index)[0].parts[0].source)).is_file() for index in range(3))


def test_it_goes_on_where_it_stopped(tmp_path: Path, web: Web) -> None:
    make(tmp_path, web, limit=1)
    clip, web.pages["/2.mp4"] = web.pages["/1.mp4"], [404, 404]
    (tmp_path / "videophy2_train" / "text" / "conversation_0001.json").unlink()
    assert make(tmp_path, web).downloaded == 2
    web.pages["/2.mp4"] = clip
    made = make(tmp_path, web)
    assert (made.records, made.downloaded) == (4, 1)
    assert [web.asked[path] for path in (TABLE, "/1.mp4", "/5.mp4", "/3.mp4")] == [1, 1, 1, 0]
    assert (tmp_path / "videophy2_train" / "text" / "conversation_0001.json").exists()


@pytest.mark.parametrize("change", [{"score_field": "joint", "caption_field": "caption"}, {"caption_field": "caption"}])
def test_other_settings_need_another_folder(tmp_path: Path, web: Web, change: dict) -> None:
    make(tmp_path, web, limit=1)
    before = (tmp_path / "videophy2_train" / "text" / "conversation_0001.json").read_text()
    with pytest.raises(
        DataError, match=r"was created with other settings \(.*caption_field '' -> 'caption'.*another --out_root"
    ):
        make(tmp_path, web, **change)
    assert (tmp_path / "videophy2_train" / "text" / "conversation_0001.json").read_text() == before
    assert make(tmp_path / "other", web, **change).records > 1


def test_captions_and_joint_scores(tmp_path: Path, web: Web) -> None:
    made = make(tmp_path, web, score_field="joint", caption_field="upsampled_caption")
    dataset = ManifestDataset.Config(path=str(made.folder)).build()
    asked = [dataset.turns(index)[0].text.rpartition("\n\nCaption: ")[2] for index in range(len(dataset))]
    assert asked == ["A b�ll falls", "c", "plain 4", 'e, "f"']
    assert [dataset.turns(index)[1].text for index in range(len(dataset))] == ["yes", "no", "yes", "no"]


def test_a_score_of_the_caption_needs_the_caption(tmp_path: Path, web: Web) -> None:
    with pytest.raises(ValueError, match="set include_caption"):
        make(tmp_path, web, score_field="sa")
    assert not web.asked


def test_a_table_without_the_column_is_named(tmp_path: Path, web: Web) -> None:
    with pytest.raises(DataError, match=r"table\.csv lacks the column dense_caption; its columns: video_url, pc"):
        make(tmp_path, web, caption_field="dense_caption")


def test_scores() -> None:
    assert [answer_text("pc", value) for value in ("3", " 5 ", "1.0")] == ["3", "5", "1"]
    assert [answer_text("joint", value) for value in ("1", "0.0", "Yes")] == ["yes", "no", "yes"]
    for field, value in (("pc", "0"), ("sa", "6"), ("pc", "2.5"), ("joint", "3"), ("pc", "")):
        with pytest.raises(SampleError, match="bad_score"):
            answer_text(field, value)
    assert prompt_text("pc", "") == PHYSICS
    assert prompt_text("pc", "it falls") == f"{PHYSICS}\n\nCaption: it falls"


def test_the_command(tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    command = ["dataset", "videophy2", "--out_root", str(tmp_path), "--limit", "1"]
    assert main([*command, "--dryrun"]) == 0
    assert not web.asked
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {split: fact["records"] for split, fact in facts.items()} == {"train": 1, "test": 1}
    assert (tmp_path / "videophy2_val" / "meta.json").exists()
    assert main(command) == 0
    assert "1 records, 0 new clips, in" in capsys.readouterr().out
