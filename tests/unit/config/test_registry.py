"""Recipes by name, and what every recipe TOML, YAML dump and name lead to."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from worldsmith.config import ConfigError, get_recipe, recipe, recipe_names
from worldsmith.config.load import load
from worldsmith.config.recipes.registry import find_recipe
from worldsmith.config.sections import ActivationCheckpointingConfig, DataSettingConfig, JobConfig, ParallelismConfig
from worldsmith.config.tree.plain import to_yaml


def test_recipes_are_found_by_name_fresh_each_time() -> None:
    assert {"small", "small_vlm"} <= set(recipe_names())
    assert get_recipe("small") == get_recipe("small")
    assert get_recipe("small") is not get_recipe("small")
    assert find_recipe("small").doc == "A small generator run."


def test_an_unknown_recipe_gets_a_suggestion_and_a_taken_name_is_refused(t: ModuleType) -> None:
    with pytest.raises(ConfigError, match=r"no recipe is named 'smal'(.|\n)*did you mean 'small'"):
        get_recipe("smal")
    with pytest.raises(ValueError, match="already registered"):
        recipe("small")(lambda: t.Trainer.Config())


def test_an_alias_leads_to_the_recipe_under_its_name(t: ModuleType, tmp_path: Path) -> None:
    recipe("renamed", starts_from="small", aliases=["earlier"])(lambda config: config)
    assert "earlier" not in recipe_names()
    assert find_recipe("earlier") is find_recipe("renamed")
    assert get_recipe("earlier") == get_recipe("renamed")
    file = tmp_path / "run.toml"
    file.write_text('[job]\nexperiment = "earlier"\n')
    for loaded in (load("earlier"), load(str(file)), load("small", ["experiment=earlier"])):
        assert loaded.tree == load("renamed").tree
        assert loaded.tree.job.experiment == "renamed"
        assert [name for name, _ in loaded.recipes()] == ["small", "renamed"]
    recipe("earlier", starts_from="small")(lambda config: config)  # a recipe of that name wins
    assert find_recipe("earlier").name == "earlier"


def test_a_dump_of_a_resolved_tree_loads_back_as_the_same_run(tmp_path: Path) -> None:
    loaded = load("small", ["trainer.max_iter=9"])
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(loaded.tree))
    assert load(str(path)).tree == loaded.tree
    assert load(str(path), ["optimizer.lr=1"]).tree.optimizer.lr == 1.0


def test_mistakes_in_a_yaml_file_carry_file_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(get_recipe("small")).replace("lr: 0.0002", "lr: fast"))
    with pytest.raises(ConfigError, match=rf"{path}:\d+:3: optimizer.lr: expected a number"):
        load(str(path))
    path.unlink()
    with pytest.raises(ConfigError, match=r"expected the name of a recipe, a \.toml"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (JobConfig(name="../x"), "output root"),
        (JobConfig(name="."), "the folder above itself"),
        (ParallelismConfig(data_parallel_shard_degree=0), "-1"),
        (ParallelismConfig(cfg_parallel_shard_degree=-1), "at least 1"),
        (ActivationCheckpointingConfig(save_ops_regex=["("]), "not a regular expression"),
        (ActivationCheckpointingConfig(mode="selective", save_ops_regex=[]), "full"),
        (DataSettingConfig(max_tokens=0), "at least 1"),
    ],
)
def test_shared_sections_check_their_values(section: JobConfig, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        section.check()
    type(section)().check()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("tree.trainer.max_itr = 3", "AttributeError: LoopConfig has no field 'max_itr'; did you mean 'max_iter'"),
        ("tree.trainer.max_iter = 'many'", "TypeError: LoopConfig.max_iter: expected an integer"),
        ("tree.optimizer.momentum.value = 1", "AttributeError: 'Config' object has no attribute 'momentum'"),
        ("{}['key']", "KeyError: 'key'"),
    ],
)
def test_a_mistake_in_a_python_recipe_is_told_with_its_line_and_without_a_traceback(
    tmp_path: Path, body: str, words: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"def change(tree):\n    {body}\n    return tree\n")
    namespace: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    recipe("mistaken", starts_from="small")(namespace["change"])
    with pytest.raises(ConfigError) as caught:
        load("mistaken")
    assert f"{file}:2:1: the recipe 'mistaken' cannot be built: {words}" in str(caught.value)
    assert f"   2 | {body}\n" in str(caught.value)
