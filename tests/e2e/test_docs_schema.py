"""The commands of docs/schema.md work as they stand."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from reasoner_runs import make_world

from worldsmith.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs/schema.md").read_text(encoding="utf-8")


@pytest.mark.timeout(300)
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    make_world(tmp_path)
    (commands,) = re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    said = []
    for line in commands.strip().splitlines():
        program, *words = shlex.split(line)
        assert program == "worldsmith"
        assert main(words) == 0, capsys.readouterr().err
        said.append(capsys.readouterr().out)
    assert "unneeded" in said[1]
    assert "max_new_tokens = 1024" in said[1]
    assert "6 of 6 records" in said[1]
    results = json.loads(Path("results/cr1_1_zero_shot/general/results.json").read_text())
    assert len(results) == 6
    assert Path("results/gaps.parquet").is_file()
    assert "answer" in Path("answers/results.json").read_text()
    assert json.loads(Path("schemas/manifest.json").read_text())["failures"] == {}
