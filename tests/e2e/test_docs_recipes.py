"""The examples of docs/recipes.md run as they stand, and print what the page says they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


def run(command: list[str], folder: Path, programs: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DATASET_PATH": "clips", "COLUMNS": "100"}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    for name in ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT", "WORLDSMITH_LATENT_CACHE"):
        environment.pop(name, None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_block_runs_and_every_output_is_the_one_shown(tmp_path: Path, programs: str) -> None:
    """Python blocks that begin with a file's name become that file, the others and the shell blocks are run in turn."""
    said = ""
    for language, code in BLOCKS:
        if language == "python" and (name := re.match(r"# (\w+\.py)\n", code)):
            (tmp_path / name[1]).write_text(code)
            compile(code, name[1], "exec")
        elif language == "python":
            run([sys.executable, "-c", code], tmp_path, programs)
        elif language == "bash":
            said = run(["bash", "-euo", "pipefail", "-c", code], tmp_path, programs)
        elif language == "text":
            assert said == code
        else:
            assert language == "toml"
    alarms = tmp_path / "outputs/train/worldsmith/demo/short_shapes"
    found = next(alarms.rglob("alarms.txt"))
    assert [line.partition(":")[0] for line in found.read_text().splitlines()] == ["step 1", "step 2"]


@pytest.mark.parametrize("heading", ["Add a setting", "Add a component", "Add a recipe"])
def test_each_step_of_the_walkthrough_takes_fewer_than_20_lines_of_code(heading: str) -> None:
    section = TEXT.partition(f"### {heading}\n")[2].partition("\n##")[0]
    code = re.search(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    assert code
    assert 3 < len([line for line in code[1].splitlines() if line.strip()]) < 20


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", TEXT):
        assert (PAGE.parent / link).exists(), link


def test_every_flag_of_the_table_is_accepted(tmp_path: Path, programs: str) -> None:
    (tmp_path / "my_callback.py").write_text(
        "from worldsmith.training.callbacks.base import Callback\nclass MyCallback(Callback):\n    pass\n"
    )
    rows = re.findall(r"^\| `(--[^|]+)` \|", TEXT, flags=re.MULTILINE)
    assert len(rows) == 7
    for row in rows:
        for flags in row.replace("`", "").split(", --"):
            flags = flags if flags.startswith("--") else f"--{flags}"
            run(
                ["bash", "-c", f"worldsmith config check moving_shapes --import my_callback {flags}"],
                tmp_path,
                programs,
            )
