"""The commands of docs/gaps.md do what the page says, after an evaluation that has recorded its data."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from pyarrow import parquet

from worldsmith.cli.main import main
from worldsmith.monitor.lineage import Input, write_lineage
from worldsmith.tools.gaps.find_gaps import COLUMNS

PAGE = (Path(__file__).parents[4] / "docs" / "gaps.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answers = {"a": ("Yes.", "yes"), "b": ("no", "yes"), "c": ("no", "no")}
    turns = [{"from": "human", "value": "<video>\nIs it?"}, {"from": "gpt", "value": "yes"}]
    Path("kpi.json").write_text(json.dumps([{"id": n, "video": f"{n}.mp4", "conversations": turns} for n in answers]))
    Path("scores").mkdir()
    rows = [{"video_id": n, "question": "Is it?", "response": said, "gt": true} for n, (said, true) in answers.items()]
    Path("scores/results.json").write_text(json.dumps(rows))
    write_lineage(
        "scores", action="evaluate", settings={}, inputs=[Input("dataset", "kpi.json")], outputs=["results.json"]
    )
    for command in COMMANDS:
        assert main(shlex.split(command)[1:]) == 0, command
    found = [parquet.read_table(f"{name}.parquet")["record_id"].to_pylist() for name in ("gaps", "words")]
    assert found == [["a", "b"], ["b"]]
    assert json.loads(Path("next.json").read_text())[0]["video"] == f"{tmp_path}/a.mp4"


def test_the_table_of_columns() -> None:
    listed = re.search(r"\| column \|.*?\n\n", PAGE, re.DOTALL)
    assert listed is not None
    cells = [line.split("|")[1] for line in listed[0].splitlines()[2:] if line]
    assert [name for cell in cells for name in re.findall(r"`(\w+)`", cell)] == list(COLUMNS)
