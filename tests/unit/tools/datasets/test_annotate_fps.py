"""Rates of videos in a new file of records: what is added, what stays, what it was made from."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from worldsmith.cli.main import main
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.datasets.messages import MessagesDataset
from worldsmith.data.video_decoder import examine

RATES = {"eight.mp4": Fraction(8), "film.mp4": Fraction(24000, 1001)}
TURNS = [{"from": "human", "value": "Is it möglich?"}, {"from": "gpt", "value": "no"}]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for name, rate in RATES.items():
        with av.open(str(folder / name), "w") as container:
            stream = container.add_stream("libx264", rate=rate)
            stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
            for level in range(6):
                frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 40 * level, np.uint8), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    (folder / "text.mp4").write_text("no film")
    return folder


def chat(**record: Any) -> dict[str, Any]:
    return {**record, "conversations": TURNS}


RECORDS = [
    chat(id="new", video="eight.mp4"),
    chat(id="near", video="eight.mp4", video_fps=8.07),
    chat(id="off", video="eight.mp4", video_fps=8.09),
    chat(id="two", video=["film.mp4", "film.mp4"]),
    chat(id="mixed", video=["film.mp4", "eight.mp4"]),
    chat(id="text"),
    chat(id="broken", video="text.mp4"),
    chat(id="gone", video="gone.mp4"),
    "no record",
    chat(id="wild", video="eight.mp4", video_fps=-1),
]


def annotate(clips: Path, source: Path, out: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    before = source.read_bytes(), source.stat().st_mtime_ns
    command = ["dataset", "annotate-fps", str(source), "--out", str(out), "--media_root", str(clips), *words]
    assert main([*command, "--json"]) == 0
    assert (source.read_bytes(), source.stat().st_mtime_ns) == before
    return json.loads(capsys.readouterr().out)


def test_what_is_added_and_what_stays(clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "annotations.json", tmp_path / "new.json"
    source.write_text(json.dumps(RECORDS))
    facts = annotate(clips, source, out, capsys)
    counts = {"records": 10, "added": 2, "stated": 2, "replaced": 0, "without_video": 1, "not_records": 2}
    assert {name: facts[name] for name in counts} == counts
    assert [(one["index"], one["key"]) for one in facts["disagrees"]] == [(2, "off")]
    assert [(one["index"], one["key"]) for one in facts["unreadable"]] == [(4, "mixed"), (6, "broken"), (7, "gone")]
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found[0] == {**RECORDS[0], "video_fps": 8.0, "video_fps_from": "stream"}
    assert found[3]["video_fps"] == examine(str(clips / "film.mp4"))[1].fps
    assert [found[n] for n in (1, 2, 4, 5, 6, 7, 8, 9)] == [RECORDS[n] for n in (1, 2, 4, 5, 6, 7, 8, 9)]
    assert "möglich" in out.read_text(encoding="utf-8")
    written = json.loads((tmp_path / "new.json.provenance.json").read_text())
    assert written == facts
    for name, file in (("source", source), ("result", out)):
        assert facts[name] == {"path": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    replaced = annotate(clips, source, tmp_path / "other.json", capsys, "--replace", "true")
    assert (replaced["replaced"], replaced["stated"]) == (1, 1)
    assert json.loads((tmp_path / "other.json").read_text())[2]["video_fps"] == 8.0


@pytest.mark.parametrize("shape", ["object", "record"])
def test_the_shape_of_the_file_stays(
    shape: str, clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what it is read as: with the new file `require` is content, and each rate is that of its file, bit by bit."""
    value = {"info": "mine", "data": RECORDS[:2]} if shape == "object" else RECORDS[0]
    source, out = tmp_path / "a.json", tmp_path / "b.json"
    source.write_text(json.dumps(value))
    annotate(clips, source, out, capsys)
    found = json.loads(out.read_text())
    assert (found["info"] if shape == "object" else found["id"]) == ("mine" if shape == "object" else "new")
    config = LlavaDataset.Config(path=str(out), media_root=str(clips), video_fps="require")
    config.check_files()
    assert config.build().turns(0)[0].parts[0].fps == examine(str(clips / "eight.mp4"))[1].fps == 8.0


def test_lines_of_messages(clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines without a video, and broken ones, stay as they are, letter by letter."""
    asked = {"role": "user", "content": [{"type": "video", "video": "film.mp4"}]}
    turns = [asked, {"role": "assistant", "content": "no"}]
    lines = [json.dumps({"messages": turns}), json.dumps(turns), '{"half', '{"messages":  [{"role":"user"}]}']
    source, out = tmp_path / "messages.jsonl", tmp_path / "new.jsonl"
    source.write_text("\n".join(lines) + "\n")
    facts = annotate(clips, source, out, capsys)
    assert (facts["added"], facts["not_records"]) == (2, 2)
    assert out.read_text().splitlines()[2:] == lines[2:]
    rate = examine(str(clips / "film.mp4"))[1].fps
    dataset = MessagesDataset.Config(path=str(out), media_root=str(clips), video_fps="require").build()
    assert [dataset.turns(index)[0].parts[0].fps for index in range(2)] == [rate, rate]


def test_nothing_is_ever_replaced(clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "annotations.json"
    source.write_text(json.dumps(RECORDS[:1]))
    (tmp_path / "link.json").symlink_to(source)
    (tmp_path / "nowhere.json").symlink_to(tmp_path / "absent")
    (tmp_path / "taken.json.provenance.json").touch()
    for out, words in (
        (source, "already exists and is not replaced"),
        (tmp_path / "link.json", "already exists and is not replaced"),
        (tmp_path / "nowhere.json", "already exists and is not replaced"),
        (tmp_path / "taken.json", "taken.json.provenance.json already exists"),
        (tmp_path / "no" / "new.json", "does not exist"),
        (tmp_path / "new.jsonl", "expected a file name that ends in .json"),
    ):
        assert main(["dataset", "annotate-fps", str(source), "--out", str(out), "--media_root", str(clips)]) == 2
        assert words in capsys.readouterr().err
    assert json.loads(source.read_text()) == RECORDS[:1]
    assert not (tmp_path / "absent").exists()
    assert main(["dataset", "annotate-fps", str(clips), "--out", str(tmp_path / "x.json")]) == 2
    assert "expected conversations (annotations.json or messages.jsonl)" in capsys.readouterr().err
    assert main(["dataset", "annotate-fps", str(source), "--out", str(tmp_path / "x.json"), "--dryrun"]) == 0
    assert "1 records, 1 with a video; would write" in capsys.readouterr().out
    assert not (tmp_path / "x.json").exists()
