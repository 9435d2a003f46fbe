"""`worldsmith config new`: a commented recipe TOML with every key, which is the recipe as it stands."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from recipe_environment import expected_warnings

from worldsmith.cli.main import main
from worldsmith.config import get_recipe, recipe_names
from worldsmith.config.command_line.overrides import is_missing
from worldsmith.config.load import load
from worldsmith.config.recipes.registry import find_recipe
from worldsmith.config.toml.toml_schema import remap, toml_fields
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.difference import find_changes
from worldsmith.config.write.describe_toml import new_recipe_toml

SHIPPED = [name for name in recipe_names() if find_recipe(name).module.startswith("worldsmith.")]


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and not find_changes(a, b, custom=True)


def loaded(file: Path) -> Loaded:
    return load(str(file), keep_unset=True)


@pytest.fixture(autouse=True)
def eight_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that some recipes are for; the others take any."""
    monkeypatch.setenv("WORLD_SIZE", "8")


@pytest.mark.parametrize("name", SHIPPED)
def test_as_it_stands_it_is_the_recipe(name: str, tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    assert main(["config", "new", str(file), "--from", name]) == 0
    read = loaded(file)
    assert same(read.raw, get_recipe(name))
    assert read.warnings == expected_warnings(read.tree)


@pytest.mark.parametrize("name", SHIPPED)
def test_with_every_key_uncommented_it_is_the_recipe(name: str, tmp_path: Path) -> None:
    lines = new_recipe_toml(name).splitlines()
    keys = [line for line in lines if line.startswith("#") and line[1:2].isalpha()]
    text = "\n".join(line[1:] if line in keys or line == "#[custom]" else line for line in lines)
    file = tmp_path / "all.toml"
    file.write_text(text, encoding="utf-8")
    read = loaded(file)
    assert same(read.raw, get_recipe(name))
    assert read.warnings == expected_warnings(read.tree)
    assert len(keys) >= 40


@pytest.mark.parametrize("name", SHIPPED)
def test_every_key_of_the_schema_with_an_effect_is_there_and_explained(name: str) -> None:
    lines, tree = new_recipe_toml(name).splitlines(), get_recipe(name)
    section, found = "", set()
    for above, line in itertools.pairwise(lines):
        if line.startswith("["):
            section = line.strip("[]")
        elif (line.startswith("#") and line[1:2].isalpha() and "=" in line) or line.startswith(("task", "exper")):
            found.add(f"{section}.{line.strip('#').partition(' = ')[0]}")
            assert above.startswith(("# ", "[job]", "task = ")), line
    targets = {field.path: remap(field.path, tree.job.task) for field in toml_fields() if field.path != ("custom",)}
    expected = {".".join(path) for path, target in targets.items() if target and not is_missing(tree, target)}
    assert found == expected


@pytest.mark.parametrize("name", SHIPPED)
def test_a_file_that_is_there_is_not_overwritten(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new.toml"
    file.write_text("mine")
    assert main(["config", "new", str(file), "--from", name]) == 2
    assert "--force overwrites it" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert main(["config", "new", str(file), "--from", name, "--force"]) == 0
    assert file.read_text() == new_recipe_toml(name)


def test_a_new_file_needs_a_recipe_and_the_right_ending(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "new", str(tmp_path / "x.toml"), "--from", "moving_shapse"]) == 2
    assert "did you mean 'moving_shapes'" in capsys.readouterr().err
    assert not (tmp_path / "x.toml").exists()
    assert main(["config", "new", str(tmp_path / "x.yaml"), "--from", "moving_shapes"]) == 2
    assert "must end in .toml" in capsys.readouterr().err
