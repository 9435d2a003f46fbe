"""Prompts whose videos are judged: what is no such prompt is refused, and never scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worldsmith.demo.adherence import load_prompts

PROMPT = {
    "prompt": "A red square moves.", "seed": 1, "colour": "red", "shape": "square", "direction": "left",
    "held_out": False, "height": 64, "width": 64, "num_frames": 17, "fps": 8,
}  # fmt: skip


def write(folder: Path, text: str) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text(f"\n{text}\n")
    return file


def test_further_keys_change_nothing(tmp_path: Path) -> None:
    (prompt,) = load_prompts(write(tmp_path, json.dumps({**PROMPT, "more": 1, "fps": 7.5})))
    assert (prompt.fps, prompt.colour, prompt.held_out) == (7.5, "red", False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": "purple"}, "'colour' must be one of red, green, blue, yellow; found 'purple'"),
        ({"shape": ["square"]}, "'shape' must be one of square, triangle"),
        ({"direction": None}, "'direction' must be one of"),
        ({"seed": "a"}, "'seed' must be an integer, found 'a'"),
        ({"seed": True}, "'seed' must be an integer"),
        ({"height": [64]}, "'height' must be an integer"),
        ({"fps": "8"}, "'fps' must be a number"),
        ({"prompt": 3}, "'prompt' must be text"),
        ({"held_out": 0}, "'held_out' must be true or false"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"prompts\.jsonl:2: {words}"):
        load_prompts(write(tmp_path, json.dumps({**PROMPT, **change})))


@pytest.mark.parametrize("text", ["[1]", "{", '{"prompt": "x"}', '{"a":' * 100_000, f'{{"seed": {"9" * 5000}}}'])
def test_what_is_no_prompt_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"prompts\.jsonl:2: "):
        load_prompts(write(tmp_path, text))
