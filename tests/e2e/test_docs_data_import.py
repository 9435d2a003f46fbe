"""The commands of docs/data_import.md do what the page says, on small sources under the page's names."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from import_sources import lerobot_v3, sidecar

from worldsmith.cli.main import main
from worldsmith.tools.datasets.import_clips import LAYOUTS

PAGE = (Path(__file__).parents[2] / "docs" / "data_import.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sidecar(tmp_path / "my_videos")
    lerobot_v3(tmp_path / "my_robot")
    for line in "".join(blocks("bash")).splitlines():
        program, *words = shlex.split(line, comments=True)
        if program == "export":
            monkeypatch.setenv(*words[0].split("="))
            continue
        assert program == "worldsmith"
        assert main(words) == 0, line
    said = capsys.readouterr().out
    assert "train: 2 clips, 3 windows in my_windows/train/video_dataset_file.jsonl" in said
    assert "train: 3 clips, 3 windows in my_episodes/train/video_dataset_file.jsonl" in said
    file = tmp_path / "my_episodes/train/video_dataset_file.jsonl"
    (shown,) = blocks("json")
    assert json.loads(file.read_text().splitlines()[0])["lerobot"] == json.loads(shown)["lerobot"]


def test_the_page_names_every_layout() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE) == list(LAYOUTS)
