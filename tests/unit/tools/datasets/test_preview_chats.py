"""What a preview shows is what training gets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from worldsmith.assets import asset_path
from worldsmith.cli.main import main
from worldsmith.config.load import load
from worldsmith.config.tree.plain import to_yaml
from worldsmith.data.conversations.media.image_patches import patchify, unpatchify
from worldsmith.tools.datasets.preview_chats import TokenSpan, contact_sheet, format_spans, terminal_lines

MODEL = str(asset_path("tiny_reasoner"))


@pytest.mark.parametrize("frames", [1, 4, 5])
def test_patches_become_frames_again(frames: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (frames, 3, 64, 96), np.uint8)
    sides = {"patch": 16, "merge": 2, "temporal": 2}
    again = unpatchify(patchify(pixels, **sides), (-(-frames // 2), 4, 6), **sides)
    assert np.array_equal(again[:frames], pixels)
    assert len(again) == frames + frames % 2


def test_supervised_text_stands_out() -> None:
    found = [
        TokenSpan("ask", 3, False, "text"),
        TokenSpan("<pad>", 48, False, "video"),
        TokenSpan("yes", 2, True, "text"),
    ]
    assert format_spans(found, colour=False) == "ask<pad>×48[[yes]]"
    assert format_spans(found, colour=True) == "ask\x1b[2;36m<pad>×48\x1b[0m\x1b[1;32myes\x1b[0m"


def test_pictures_for_files_and_terminals() -> None:
    frames = np.zeros((9, 3, 32, 48), np.uint8)
    frames[8, 0] = 255
    sheet = contact_sheet(frames, 3)
    assert sheet.size == (144, 32)
    assert np.asarray(sheet)[0, -1].tolist() == [255, 0, 0]
    lines = list(terminal_lines(sheet, 12))
    assert len(lines) == 1
    assert lines[0].count("▀") == 12
    assert "\x1b[38;2;255;0;0m\x1b[48;2;255;0;0m▀\x1b[0m" in lines[0]


@pytest.fixture
def chats(tmp_path: Path, write_clip: Callable) -> Path:
    write_clip(tmp_path / "v.mp4", frames=8)
    Image.new("RGB", (64, 64), (0, 0, 255)).save(tmp_path / "a.png")

    def record(answer: str, **media: str) -> dict[str, Any]:
        turns = [{"from": "human", "value": "Is it plausible?"}, {"from": "gpt", "value": answer}]
        return {"id": "/".join(media.values()), **media, "conversations": turns}

    records = [record("yes", video="v.mp4"), record("no", image="a.png"), record("no", image="b.png"), record("")]
    (tmp_path / "annotations.json").write_text(json.dumps(records))
    return tmp_path


def test_the_command(chats: Path, tmp_path: Path, capsys: Any) -> None:
    command = ["dataset", "preview", MODEL, "--dataset", "LlavaDataset", "--dataset.path", str(chats)]
    command += ["--processor.media.nframes", "4"]
    assert main([*command, "--out", str(tmp_path / "png"), "--frames", "2"]) == 0
    out = capsys.readouterr().out
    assert "annotations.json: 4 records; skipped: no_answer 1" in out
    assert re.search(r"v\.mp4: \d+ tokens, 2 supervised", out)
    assert "<0.1 seconds><|vision_start|><|video_pad|>×6<|vision_end|><0.8 seconds>" in out
    assert "Is it plausible?<|im_end|>\n<|im_start|>assistant\n[[yes<|im_end|>]]" in out
    assert f"video: 96×64 px, 4 frames, {tmp_path / 'png' / 'v.mp4_0.png'}" in out
    assert "b.png: skipped: missing_file" in out
    assert Image.open(tmp_path / "png" / "v.mp4_0.png").size == (192, 64)
    assert Image.open(tmp_path / "png" / "a.png_0.png").getpixel((9, 9)) == (0, 0, 255)


def test_the_command_as_data(chats: Path, capsys: Any) -> None:
    command = ["dataset", "preview", MODEL, "--dataset", "LlavaDataset", "--dataset.path", str(chats)]
    assert main([*command, "--first", "1", "--count", "1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["records"], facts["left_out"]) == (4, {"no_answer": 1})
    (sample,) = facts["samples"]
    assert (sample["key"], sample["supervised"]) == ("a.png", 2)
    assert [s["text"] for s in sample["text"] if s["supervised"]] == ["no<|im_end|>"]
    assert sum(s["tokens"] for s in sample["text"]) == sample["tokens"]
    assert sample["media"] == [{"kind": "image", "frames": 1, "height": 64, "width": 64}]


def test_a_run_shows_what_it_trains_on(chats: Path, tmp_path: Path, capsys: Any) -> None:
    dataset = {"type": "worldsmith.data.conversations.datasets.llava.LlavaDataset", "path": str(chats)}
    run = load("videophy2_nano_tiny", [f"dataloader_train.dataset={json.dumps(dataset)}"]).tree
    (tmp_path / "run.yaml").write_text(to_yaml(run))
    assert main(["dataset", "preview", "--run", str(tmp_path / "run.yaml"), "--count", "1"]) == 0
    assert "[[yes<|im_end|>]]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "set exactly one"),
        ([MODEL, "--run", "videophy2_nano_tiny"], "set exactly one"),
        (["--run", "videophy2_nano_tiny", "--dataset.path", "a"], "the run already has a dataset"),
        (["--run", "vision_sft_tiny"], "trains on captioned clips"),
    ],
)
def test_what_cannot_be_shown_is_said(words: list[str], message: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DATASET_PATH", "nowhere")
    assert main(["dataset", "preview", *words]) == 2
    assert message in capsys.readouterr().err
