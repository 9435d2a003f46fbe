"""Data sets that the `datasets` library reads: the real library on small local files."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from worldsmith.assets import asset_path
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.conversation import say
from worldsmith.data.conversations.datasets.llava_onevision import LlavaOneVision, Streamed
from worldsmith.data.stream.errors import DataError, SampleError


def png(level: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (32, 32), level).save(out, "PNG")
    return out.getvalue()


def chat(question: str, answer: str) -> list[dict[str, str]]:
    return [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two Parquet files with five records: images, one text only, one with a role that is not known."""
    records: list[dict[str, Any]] = [
        {"id": "a", "image": {"bytes": png(1), "path": None}, "conversations": chat("<image>\nWhat?", "one")},
        {"id": "b", "image": {"bytes": png(2), "path": None}, "conversations": chat("Which?", "two")},
        {"id": "c", "image": None, "conversations": chat("Text only?", "yes")},
        {"id": "d", "image": None, "conversations": [{"from": "robot", "value": "x"}]},
        {"id": "e", "image": {"bytes": png(5), "path": None}, "conversations": chat("Last?", "five")},
    ]
    turns = datasets.List({"from": datasets.Value("string"), "value": datasets.Value("string")})
    features = datasets.Features({"id": datasets.Value("string"), "image": datasets.Image(), "conversations": turns})
    for number, part in enumerate((records[:3], records[3:])):
        datasets.Dataset.from_list(part, features=features).to_parquet(
            str(tmp_path / "data" / f"train-{number}.parquet")
        )
    return tmp_path / "data"


def build(folder: Path, **settings: Any) -> LlavaOneVision:
    return LlavaOneVision.Config(path=str(folder), subset="", **settings).build()


@pytest.mark.parametrize("streaming", [False, True])
def test_local_records(folder: Path, streaming: bool) -> None:
    dataset = build(folder, streaming=streaming, limit=5)
    assert len(dataset) == 5
    for index in (0, 4, 1, 2):  # not in order: a run that goes on reads earlier samples again
        turns = dataset.turns(index)
        assert turns[1] == say("assistant", {0: "one", 1: "two", 2: "yes", 4: "five"}[index])
        images = [part.source for part in turns[0].parts if part.kind == "image"]
        assert images == ([] if index == 2 else [png(index + 1)])
    assert dataset.turns(0)[0].parts[-1].text == "What?"
    with pytest.raises(SampleError, match=r"unknown_role: d: .*'robot'"):
        dataset.turns(3)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_all_ranks_together_see_each_record_once_a_pass(
    folder: Path, streaming: bool, world_size: int, workers: int
) -> None:
    """The library deals a stream out among workers, too; it must be dealt out once."""
    processor = ChatProcessor.Config().build(folder=asset_path("tiny_reasoner"))
    settings = {"path": str(folder), "subset": "", "streaming": streaming, "limit": 5}
    config = ChatLoader.Config(
        dataset=LlavaOneVision.Config(**settings), max_samples_per_batch=1, shuffle=False, num_workers=workers
    )
    seen: list[str] = []
    for rank in range(world_size):
        loader = config.build(processor=processor, rank=rank, world_size=world_size)
        due = sum(position % world_size == rank and position % 5 != 3 for position in range(20))
        seen += [pack[0].key for pack in islice(loader, due)]
    assert Counter(seen) == {f"{folder}[{index}]": 4 for index in (0, 1, 2, 4)}


def test_a_limit(folder: Path) -> None:
    assert len(build(folder, limit=2)) == 2
    assert len(build(folder, limit=9)) == 5
    assert build(folder).fingerprint != build(folder, limit=2).fingerprint


def test_a_stream_of_unknown_length_needs_a_limit(folder: Path) -> None:
    with pytest.raises(DataError, match=r"does not state its number of records; set dataloader_train\.dataset\.limit"):
        build(folder, streaming=True)


def test_what_cannot_be_loaded_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match="cannot be loaded"):
        build(folder / "nowhere")


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'worldsmith\[datasets\]'"):
        LlavaOneVision.Config().check_files()


@pytest.fixture
def counted() -> Callable[[], tuple[Streamed, list[int]]]:
    def make() -> tuple[Streamed, list[int]]:
        read: list[int] = []

        class Stream:
            def __iter__(self) -> Any:
                for number in range(6):
                    read.append(number)
                    yield {"number": number}

        return Streamed(Stream()), read

    return make


def test_a_stream_is_read_on_to_a_record_and_anew_for_an_earlier_one(counted: Callable) -> None:
    stream, read = counted()
    assert [stream[index]["number"] for index in (0, 2, 3, 1)] == [0, 2, 3, 1]
    assert read == [0, 1, 2, 3, 0, 1]
    with pytest.raises(SampleError, match="missing_record: the stream ends after 6 records"):
        stream[6]
