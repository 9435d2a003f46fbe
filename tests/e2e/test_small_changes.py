"""Two changes that a contributor makes, as the docs describe them, in a copy of the package: a metric and a setting."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, in a folder for `PYTHONPATH`."""
    copy = tmp_path / "src"
    shutil.copytree(ROOT / "src/worldsmith", copy / "worldsmith", ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{before!r} in {file}"
    file.write_text(text.replace(before, after), encoding="utf-8")


def python_blocks(page: str, heading: str) -> list[str]:
    """The Python blocks of a section of the docs."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run_script(name: str, package: Path) -> str:
    """Runs a script of `tests/support` with the copy of the package, in the folder of the copy."""
    script = ROOT / "tests/support" / name
    paths = os.pathsep.join(map(str, (package, ROOT / "tests/support")))
    settings = {"PYTHONPATH": paths, "DATASET_PATH": "data", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=package.parent,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_metric_with_a_network_is_one_file_and_one_line(package: Path) -> None:
    simple, code, lines = python_blocks("evaluate.md", "Adding a metric")
    metrics = package / "worldsmith/evaluation/metrics"
    (metrics / "brightness.py").write_text(simple, encoding="utf-8")
    (metrics / "feature_distance.py").write_text(code, encoding="utf-8")
    last = next(row for row in reversed((metrics / "registry.py").read_text().splitlines(True)) if '": "' in row)
    edit(metrics / "registry.py", last, last + lines)
    run_script("contributed_metric.py", package)


@pytest.mark.slow
def test_a_setting_of_the_optimizer_is_written_in_one_place(package: Path) -> None:
    field, option = python_blocks("architecture.md", "A value in a TOML becomes a field")
    optimizer = package / "worldsmith/training/optimizer.py"
    edit(optimizer, "        keys_to_select: list[str]", f"{field}        keys_to_select: list[str]")
    edit(optimizer, '        "eps": config.eps,\n', f'        "eps": config.eps,\n{option}')
    shown = run_script("contributed_setting.py", package)
    assert re.search(r"optimizer\.amsgrad\s*=?\s*true|amsgrad: true", shown), shown
    assert "--optimizer.amsgrad" in shown
