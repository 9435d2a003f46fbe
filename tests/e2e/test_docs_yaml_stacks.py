"""The guide to YAML stacks: its files load, its table is true, its dialect works, its commands run."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

from worldsmith.config import get_recipe
from worldsmith.config.load import load
from worldsmith.config.recipes.packages import import_recipes
from worldsmith.config.yaml.yaml_text import read_yaml

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "yaml_stacks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(?:# file: (\S+)\n)?(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
EXAMPLE = ["examples/yaml/moving_shapes.yaml", "examples/yaml/cpu_run.yaml"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the files of the guide and a link to the examples."""
    for _, name, content in BLOCKS:
        if name:
            (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATASET_PATH", "clips")
    return tmp_path


def test_both_spellings_of_a_class_mean_the_same(folder: Path) -> None:
    plain, node = load(["linear.yaml"]), load(["linear_node.yaml"])
    assert plain.tree == node.tree
    assert plain.tree.scheduler.cycle_lengths == [500]
    assert plain.tree.scheduler.warm_up_steps == get_recipe("moving_shapes").scheduler.warm_up_steps, "kept"  # type: ignore[attr-defined]


def test_the_table_of_plain_words_is_true() -> None:
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \|$", GUIDE, flags=re.MULTILINE)
    assert len(rows) == 12
    for written, value in rows:
        expected = float(value) if value == "inf" else ast.literal_eval(value)
        found = read_yaml(f"x: {written}", "table").data["x"]
        assert (found, type(found)) == (expected, type(expected)), written


def test_the_example_stack_is_the_example_toml(folder: Path) -> None:
    toml = load("examples/toml/sft_config/moving_shapes.toml")
    stack = load(EXAMPLE)
    assert stack.tree == toml.tree
    assert stack.warnings == toml.warnings


def test_a_dialect_takes_less_than_twenty_lines(folder: Path) -> None:
    lines = [line for line in (folder / "shape_engine.py").read_text().splitlines() if line.strip()]
    assert len(lines) < 20
    import_recipes("shape_engine")
    loaded = load(["shapes.yaml"], ["trainer.logging_iter=5"])
    tree = loaded.tree
    assert (tree.trainer.max_iter, tree.optimizer.lr, tree.trainer.logging_iter) == (200, 1e-4, 5)
    assert tree.dataloader_train.dataset.path == "clips"
    assert loaded.warnings == ["shapes.yaml:4: args.verbose has no effect: logging is set by trainer.logging_iter"]
    assert str(loaded.provenance["optimizer", "lr"]) == "shapes.yaml:3"


def test_the_commands_of_the_guide_run(folder: Path, programs: str) -> None:
    """On three clips that the demo's data command makes."""
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    make_clips = "worldsmith dataset moving-shapes clips --clips 3 --val-clips 0 --num-frames 5"
    commands = [line for language, _, text in BLOCKS if language == "bash" for line in text.splitlines()]
    assert len(commands) == 3
    for command in [make_clips, *commands]:
        done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_every_recipe_survives_yaml_and_json_text() -> None:
    """The shipped recipes, with their references."""
    import json

    from worldsmith.config import get_recipe, recipe_names
    from worldsmith.config.tree.plain import to_dict, to_yaml
    from worldsmith.config.tree.read_config import from_dict, from_yaml

    for name in recipe_names():
        tree = get_recipe(name)
        assert from_yaml(to_yaml(tree, custom=True)) == tree, name
        assert from_dict(json.loads(json.dumps(to_dict(tree, custom=True)))) == tree, name
