"""The public CI workflow names commands that exist, and what pyproject.toml says of versions can be tested."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

import worldsmith

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/check_newest.sh"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {name: needed for name, needed in PROJECT["optional-dependencies"].items() if name != "dev"}


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    return yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))


def test_the_workflow_runs_the_tests_and_each_mode_of_the_script(workflow: dict[Any, Any]) -> None:
    triggers = workflow[True]  # in YAML 1.1 the key `on` is a boolean
    assert {"push", "pull_request", "schedule"} <= set(triggers)
    test, install = workflow["jobs"]["test"], workflow["jobs"]["install"]
    assert test["steps"][-1]["run"] == "make test"
    assert re.search(r"^test:.* lint$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    script, mode, python = install["steps"][-1]["run"].replace("${{ ", "{").replace(" }}", "}").split()
    assert ROOT / script == SCRIPT
    assert (mode, python) == ("{matrix.mode}", "python{matrix.python}")
    matrix = install["strategy"]["matrix"]
    modes = {*matrix["mode"], *(added["mode"] for added in matrix["include"])}
    assert modes == set(re.findall(r"^# (\w+)  ", SCRIPT.read_text(encoding="utf-8"), flags=re.MULTILINE)) - {"PYTHON"}


def test_the_script_refuses_unknown_modes_and_missing_interpreters(tmp_path: Path) -> None:
    for words, expected in (
        (["latest"], "expected newest, oldest or readme"),
        (["newest", "python2"], "python2 is not"),
    ):
        environment = {"PATH": os.defpath, "TMPDIR": str(tmp_path)}
        done = subprocess.run([str(SCRIPT), *words], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert expected in done.stderr
        assert not list(tmp_path.iterdir())


def test_each_dependency_has_a_lower_bound_and_each_extra_is_installed_by_the_script() -> None:
    for requirement in chain(PROJECT["dependencies"], *EXTRAS.values()):
        assert re.fullmatch(r"[\w.-]+(\[[\w,]+\])?>=[\d.]+(,.*)?", requirement), requirement
    (installed,) = re.findall(r"^extras=(.*)$", SCRIPT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(installed.split(",")) == set(EXTRAS)


def test_the_newest_section_of_the_changelog_has_the_version_of_the_package() -> None:
    versions = re.findall(r"^## (\S+) \(", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert versions[0] == worldsmith.__version__
    assert len(versions) == len(set(versions))
