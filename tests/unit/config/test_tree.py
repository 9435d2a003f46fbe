"""The tree as plain data, YAML and JSON: round trip, tags, and every mistake at once."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from worldsmith.config import ConfigError, get_recipe
from worldsmith.config.tree.plain import to_dict, to_yaml
from worldsmith.config.tree.read_config import from_dict, from_yaml


@pytest.mark.parametrize("name", ["small", "small_vlm"])
def test_every_recipe_comes_back_equal_from_dict_json_and_yaml(name: str) -> None:
    tree = get_recipe(name)
    assert from_dict(to_dict(tree)) == tree
    assert from_dict(json.loads(json.dumps(to_dict(tree)))) == tree
    assert from_yaml(to_yaml(tree)) == tree
    assert to_yaml(tree) == to_yaml(get_recipe(name))


def test_awkward_texts_and_numbers_survive_yaml(t: ModuleType) -> None:
    texts = [
        "123",
        "true",
        "null",
        "~",
        "1e-5",
        "2024-01-01",
        "",
        " a ",
        "it's",
        "a: b",
        "#x",
        "é中",
        "0x1f",
        "012",
        "1_0",
    ]
    tree = t.Trainer.Config(
        optimizer=t.AdamW.Config(lr=1e-5, keys_to_select=texts, eps=1e300, weight_decay=float("inf"))
    )
    assert from_yaml(to_yaml(tree)) == tree


def test_the_tag_is_written_only_where_the_class_is_open(t: ModuleType) -> None:
    data = to_dict(get_recipe("small"))
    assert data["type"].endswith(".Trainer")
    assert "type" not in data["optimizer"]
    assert data["scheduler"]["type"].endswith(".Cosine")
    assert data["model"]["config"]["type"].endswith(".Generator")
    assert data["trainer"]["callbacks"]["grad_clip"]["type"].endswith(".GradClip")


def test_a_base_class_field_accepts_any_subclass_and_refuses_others(t: ModuleType) -> None:
    tag = to_dict(t.GradClip.Config())["type"]
    data: dict[str, Any] = {"trainer": {"callbacks": {"c": {"type": tag, "clip_norm": 2.0}}}}
    assert from_dict(data, t.Trainer.Config).trainer.callbacks["c"] == t.GradClip.Config(clip_norm=2.0)
    data["trainer"]["callbacks"]["c"] = {"type": to_dict(t.AdamW.Config())["type"]}
    with pytest.raises(ConfigError, match="is not allowed here"):
        from_dict(data, t.Trainer.Config)


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("os.system", "outside the trusted packages"),
        ("worldsmith.nothing.Here", "has no 'nothing'"),
        ("worldsmith.config.sections.JobConfg", "did you mean 'JobConfig'"),
        ("worldsmith.config.tree.paths.parse_path", "neither a component nor a config section"),
        ("worldsmith.__main__.X", "not a class name"),
        (3, "not a class name"),
    ],
)
def test_class_names_that_cannot_be_used_are_refused_with_the_reason(t: ModuleType, tag: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict({"scheduler": {"type": tag}}, t.Trainer.Config)
    assert words in str(caught.value)


def test_a_section_that_must_name_its_class_says_so(t: ModuleType) -> None:
    with pytest.raises(ConfigError, match="must name its class"):
        from_dict({"model": {"config": {}}}, t.Trainer.Config)
    with pytest.raises(ConfigError, match="must name its class"):
        from_dict({"job": {}})


def test_all_mistakes_are_reported_together_with_their_paths(t: ModuleType) -> None:
    data = {
        "optimizer": {"lr": "fast", "betas": [0.9, "x"], "wd": 1},
        "trainer": {"max_iter": 1.5},
        "jobs": {},
        "checkpoint": 3,
    }
    with pytest.raises(ConfigError) as caught:
        from_dict(data, t.Trainer.Config)
    paths = {problem.path for problem in caught.value.problems}
    expected = {"optimizer.lr", "optimizer.betas[1]", "optimizer.wd", "trainer.max_iter", "jobs", "checkpoint"}
    assert paths == expected


def test_custom_is_verbatim_and_in_the_dump_only_on_request(t: ModuleType) -> None:
    tree = t.Trainer.Config(custom={"a": [{"b": 1}], "text": "${not.resolved}"})
    assert "custom" not in to_dict(tree)
    assert from_dict(to_dict(tree, custom=True)) == tree


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("optimizer:\n  lr: x\n", 2, "expected a number"),
        ("optimizer:\n  lr: 1\n  lr: 2\n", 3, "occurs twice"),
        ("a: [1\n", 2, "not valid YAML"),
        ("optimizer: !!python/object:os.system {}\n", 1, "tag"),
        ("a: !x 1\n", 1, "not allowed"),
    ],
)
def test_mistakes_in_yaml_have_their_place(t: ModuleType, text: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_yaml(text, t.Trainer.Config, file="x.yaml")
    problem = caught.value.problems[0]
    assert (problem.file, problem.line) == ("x.yaml", line)
    assert words in problem.render()


def test_yaml_that_expands_without_end_is_refused(t: ModuleType) -> None:
    text = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
    )
    with pytest.raises(ConfigError, match="more than 10000 values"):
        from_yaml(text, t.Trainer.Config)
    with pytest.raises(ConfigError, match="nested more than 64"):
        from_yaml("&a [*a]\n", t.Trainer.Config)
