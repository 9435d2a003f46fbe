"""A text that would take minutes to tokenize is a bad record, with the limit; the others are used."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from worldsmith.assets import asset_path
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.stream.quarantine import Quarantine
from worldsmith.sampling.requests import GenerationRequest

LONG = "word " * 10_000_000
WORDS = "characters: expected at most 1,000,000"


def require_listed(run: Path, key: str) -> None:
    (entry,) = map(json.loads, (run / "quarantine.jsonl").read_text().splitlines())
    assert (entry["key"], entry["reason"]) == (key, "text_too_long")
    assert WORDS in entry["detail"]


def refuse_long(text: str) -> list[int]:
    assert len(text) < 1000, "a long text reaches the tokenizer"
    return list(text.encode())[:20]


def test_a_caption_of_50_mb_is_left_out(
    tmp_path: Path, write_clip: Callable[..., Path], write_jsonl: Callable[..., Path], record: Callable[..., dict]
) -> None:
    records = [record(f"c{number}") for number in range(3)]
    for number in range(3):
        write_clip(tmp_path / f"videos/c{number}.mp4")
    records[1]["t2w_windows"][0]["caption"] = LONG
    config = VideoLoader.Config(max_samples_per_batch=2, bad_samples_allowed=4)
    config.dataset.path, config.dataset.resolution = str(write_jsonl(tmp_path, records)), "64"
    config.dataset.min_frames = 5
    loader = config.build(grid=LatentGrid(4, 16, 2), tokenizer=refuse_long, quarantine=Quarantine(tmp_path / "run"))
    assert {sample.key for pack in islice(loader, 4) for sample in pack} == {"c0_w0", "c2_w0"}
    require_listed(tmp_path / "run", "c1_w0")


def test_a_question_of_50_mb_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["Is it possible?", LONG, "Is it not?"]
    records = [
        {"id": f"r{n}", "conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "no"}]}
        for n, text in enumerate(asked)
    ]
    (tmp_path / "annotations.json").write_text(json.dumps(records))
    config = ChatLoader.Config(max_samples_per_batch=2, bad_samples_allowed=4)
    config.dataset = LlavaDataset.Config(path=str(tmp_path))
    processor = ChatProcessor.Config().build(folder=asset_path("tiny_reasoner"))
    apply = processor.tokenizer.apply_chat_template

    def refuse(messages: list[dict], **settings: object) -> str:
        assert all(len(message["content"]) < 1000 for message in messages), "a long text reaches the template"
        return apply(messages, **settings)

    monkeypatch.setattr(processor.tokenizer, "apply_chat_template", refuse)
    loader = config.build(processor=processor, quarantine=Quarantine(tmp_path / "run"))
    assert {sample.key for pack in islice(loader, 4) for sample in pack} == {"r0", "r2"}
    require_listed(tmp_path / "run", "r1")


def test_a_prompt_of_50_mb_is_refused() -> None:
    request = GenerationRequest(prompt=LONG, num_frames=5, height=64, width=64, fps=8.0, seed=0)
    with pytest.raises(ValueError, match=WORDS):
        request.check(LatentGrid(4, 16, 2))
