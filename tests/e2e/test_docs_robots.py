"""The config, the code and the commands of docs/robots.md do what the page says, on small data under its names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from robot_episodes import write_episodes

from worldsmith.cli.main import main
from worldsmith.data.robots.robot import KINDS
from worldsmith.data.robots.robot_dataset import MODES
from worldsmith.data.robots.rotations import WIDTHS

PAGE = (Path(__file__).parents[2] / "docs" / "robots.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_episodes(tmp_path / "my_robot", lengths=(30, 20, 25, 30))
    (config,) = blocks("yaml")
    Path("robots.yaml").write_text(config)
    for line in "".join(blocks("bash")).splitlines():
        program, *words = shlex.split(line, comments=True)
        assert program == "worldsmith"
        assert main([*words, *["--workers=0"] * (words[0] == "check")]) == 0, line
    said = capsys.readouterr().out
    assert "written: my_statistics.json" in said
    assert said.count("27 of 27 samples") == 2


def test_the_code_of_the_page_builds_valid_configs() -> None:
    found: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, found)
    found["mix"].check()
    assert found["robot"].build(widths={"observation.state": 8, "action": 7}).width == 10


def test_the_page_names_all_groups_modes_and_encodings() -> None:
    table = re.findall(r"^\| `(\w+)(?: COLUMN)?(?: ENCODING)?` \|", PAGE, flags=re.MULTILINE)
    assert {*KINDS, *MODES} <= set(table)
    assert all(f"`{name}`" in PAGE for name in WIDTHS)
