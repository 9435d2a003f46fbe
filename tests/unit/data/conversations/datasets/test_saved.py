"""Data sets that the `datasets` library saved: the real library writes them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.conversation import Part, say
from worldsmith.data.conversations.datasets.saved import SavedDataset
from worldsmith.data.stream.errors import DataError

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "video", "video": "a.mp4"}, {"type": "text", "text": "Is it?"}]},
    {"role": "assistant", "content": "yes"},
]


def saved(folder: Path, *rows: dict[str, Any], **settings: Any) -> SavedDataset:
    datasets.Dataset.from_list(list(rows)).save_to_disk(str(folder / "set"))
    return SavedDataset.Config(path=str(folder / "set"), **settings).build()


def png(level: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (32, 32), level).save(out, "PNG")
    return out.getvalue()


def test_conversations_as_json_text(tmp_path: Path) -> None:
    dataset = saved(tmp_path, {"conversations": json.dumps(TURNS)}, {"conversations": "{"}, {"conversations": "[]"})
    shown = Part("video", source=str(tmp_path / "set/a.mp4"))
    assert dataset.turns(0) == (say("system", "Be brief."), say("user", shown, "Is it?"), say("assistant", "yes"))
    assert [(r.reason, r.index) for r in dataset.rejections] == [("bad_json", 1), ("bad_record", 2)]
    assert dataset.place(0)[0] == "set[0]"


def test_conversations_as_nested_columns(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Which?"}, {"role": "assistant", "content": "b"}]
    dataset = saved(tmp_path, {"id": "x", "talk": turns, "video": "v.mp4", "video_fps": 4.0}, column="talk")
    shown = Part("video", source=str(tmp_path / "set/v.mp4"), fps=4.0)
    assert dataset.turns(0) == (say("user", shown, "Which?"), say("assistant", "b"))
    assert dataset.place(0)[0] == "x"


def test_typed_parts_take_stored_images(tmp_path: Path) -> None:
    content = [{"type": "image", "text": None}, {"type": "text", "text": "What?"}, {"type": "image", "text": None}]
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]
    images = [[png(1), png(2)], [png(3), png(4)]]
    rows = [{"messages": turns, "images": [{"bytes": b, "path": None} for b in pair]} for pair in images]
    types = datasets.Features(
        {
            "messages": datasets.List(
                {
                    "role": datasets.Value("string"),
                    "content": datasets.List({"type": datasets.Value("string"), "text": datasets.Value("string")}),
                }
            ),
            "images": datasets.List(datasets.Image()),
        }
    )
    datasets.Dataset.from_list(rows, features=types).save_to_disk(str(tmp_path / "set"))
    dataset = SavedDataset.Config(path=str(tmp_path / "set"), column="messages").build()
    shown = [[part.source for part in dataset.turns(n)[0].parts if part.kind == "image"] for n in (0, 1)]
    assert shown == images
    assert b"PNG" not in repr(dataset.entries).encode()  # the bytes stay in the file until they are needed
    other = SavedDataset.Config(path=str(tmp_path / "set"), column="messages", limit=1).build()
    assert other.fingerprint != dataset.fingerprint


def test_tags_and_an_image_column(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "one"}]
    types = datasets.Features(
        {
            "image": datasets.Image(),
            "conversations": datasets.List({"from": datasets.Value("string"), "value": datasets.Value("string")}),
        }
    )
    rows = [{"image": {"bytes": png(7), "path": None}, "conversations": turns}]
    folder = tmp_path / "files"
    folder.mkdir()
    datasets.Dataset.from_list(rows, features=types).to_parquet(str(folder / "train-0.parquet"))
    dataset = SavedDataset.Config(path=str(folder)).build()  # not saved, but loaded by the library all the same
    assert dataset.turns(0) == (say("user", Part("image", source=png(7)), "What?"), say("assistant", "one"))


def test_splits(tmp_path: Path) -> None:
    sets = {
        name: datasets.Dataset.from_list([{"id": f"{name}{n}", "conversations": json.dumps(TURNS)} for n in range(2)])
        for name in ("train", "test")
    }
    datasets.DatasetDict(sets).save_to_disk(str(tmp_path / "set"))

    def keys(**settings: Any) -> list[str]:
        return [e.key for e in SavedDataset.Config(path=str(tmp_path / "set"), **settings).build().entries]

    assert keys(split="test") == ["test0", "test1"]
    assert keys(split="test+train") == ["test0", "test1", "train0", "train1"]
    for split, words in (("", "several splits"), ("val", "no split 'val': found train, test")):
        with pytest.raises(DataError, match=words):
            keys(split=split)


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="has no column 'conversations': found text"):
        saved(tmp_path, {"text": "x"})
    with pytest.raises(DataError, match="does not exist: expected a folder"):
        SavedDataset.Config(path=str(tmp_path / "none")).build()
    with pytest.raises(DataError, match=r"dataset\.split is 'train'"):
        SavedDataset.Config(path=str(tmp_path / "set"), split="train").build()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'worldsmith\[datasets\]'"):
        SavedDataset.Config(path=str(tmp_path / "set")).build()


def test_a_folder_is_known_by_its_files(tmp_path: Path) -> None:
    saved(tmp_path, {"conversations": json.dumps(TURNS)})
    found = ChatLoader.dataset_at(str(tmp_path / "set"))
    assert isinstance(found, SavedDataset.Config)
