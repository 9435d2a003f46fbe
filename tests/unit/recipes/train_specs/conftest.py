"""Specs as files, with the data that they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from train_specs import SAMPLES

from worldsmith.config.load import load


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    turns = [{"from": "human", "value": "<video>\nIs it?"}, {"from": "gpt", "value": "yes"}]
    record = {"video": "a.mp4", "video_fps": 10, "conversations": turns}
    records = [{"id": str(number), **record} for number in range(SAMPLES)]
    (folder / "annotations.json").write_text(json.dumps(records))
    return folder


@pytest.fixture
def read(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def read(text: str, *words: str, suffix: str = "toml") -> Any:
        file = tmp_path / f"spec.{suffix}"
        file.write_text(text.replace("{data}", str(data)))
        return load(str(file), spec_words=words)

    return read
