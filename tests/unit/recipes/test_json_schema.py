"""The JSON Schemas: current, valid, and of one mind with the loader.

The judge is the third-party package jsonschema. The loader's verdict is the whole way of a file: text, types, ranges,
references, checks.
"""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from config_mutations import MUTATIONS, Doc, place, put, sections

from worldsmith.cli.schema import schema_text
from worldsmith.config import ConfigError, get_recipe, recipe_names
from worldsmith.config.load import load
from worldsmith.config.recipes.registry import find_recipe
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.write.describe_toml import new_recipe_toml
from worldsmith.config.write.values import write_toml
from worldsmith.config.yaml.yaml_text import dump_yaml

ROOT = Path(__file__).parents[3]
SHIPPED = sorted(
    (name for name in recipe_names() if find_recipe(name).module.startswith("worldsmith.")),
    key=lambda name: name.startswith("action_"),
)
"""The first one has all weights and no table with keys of one's own."""
EXAMPLES = sorted((ROOT / "examples/toml/sft_config").glob("*.toml"))
MUTANTS = 150
"""Of the recipe TOML, and again as many of the tree."""

OURS_ALONE: list[tuple[str, str, Any]] = [
    ("lists of different lengths", "scheduler.f_max", [1.0, 1.0, 1.0]),
    ("a warm-up longer than its cycle", "scheduler.warm_up_steps", [10**6]),
    ("500.0 is not an integer, in JSON it is", "trainer.max_iter", 500.0),
    ("a reference that leads nowhere", "trainer.max_iter", "${trainer.max_itr}"),
    ("a reference to a value of another type", "trainer.max_iter", "${model.config.precision}"),
    ("a variable that is not set", "checkpoint.load_path", "${oc.env:WORLDSMITH_NOT_SET}"),
    ("a pattern that fits everything", "optimizer.keys_to_select", [""]),
    ("adapters selected without LoRA", "optimizer.keys_to_select", ["lora_"]),
    ("a folder outside the output root", "job.name", "../x"),
    ("no regular expression", "model.activation_checkpointing.save_ops_regex", ["("]),
]


def schema_of(kind: str) -> jsonschema.Draft202012Validator:
    text = (ROOT / "docs/schema" / f"{'recipe' if kind == 'toml' else kind}.schema.json").read_text(encoding="utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))


def all_keys(name: str) -> Doc:
    """A recipe TOML table with every key of the recipe."""
    lines = new_recipe_toml(name).splitlines()
    text = "\n".join(line[1:] if line.startswith("#") and line[1:2].isalpha() else line for line in lines)
    return tomllib.loads(text)


def documents(kind: str) -> list[Doc]:
    if kind == "tree":
        return [to_dict(get_recipe(name)) for name in SHIPPED]
    return [*map(all_keys, SHIPPED), *(tomllib.loads(path.read_text(encoding="utf-8")) for path in EXAMPLES)]


def ours(kind: str, document: Doc, folder: Path) -> str:
    """What the loader says against a document; empty if it is fine."""
    file = folder / ("run.toml" if kind == "toml" else "run.yaml")
    file.write_text(write_toml(document) if kind == "toml" else dump_yaml(document), encoding="utf-8")
    try:
        load(str(file))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["toml", "tree"])
def test_the_committed_schema_is_current_and_is_a_schema(kind: str) -> None:
    file = ROOT / "docs/schema" / f"{'recipe' if kind == 'toml' else kind}.schema.json"
    command = f"worldsmith schema {kind} -o {file.relative_to(ROOT)}"
    jsonschema.Draft202012Validator.check_schema(json.loads(file.read_text(encoding="utf-8")))
    assert file.read_text(encoding="utf-8") == shipped_text(kind), f"refresh it with: {command}"


def shipped_text(kind: str, *words: str) -> str:
    """What a fresh process prints: recipes and classes of other tests are not in it."""
    command = [sys.executable, "-m", "worldsmith.cli.main", "schema", kind, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_names_the_schema_by_a_path_that_exists(path: Path) -> None:
    word, target = path.read_text(encoding="utf-8").splitlines()[0].split()
    assert word == "#:schema"
    assert (path.parent / target).resolve() == ROOT / "docs/schema/recipe.schema.json"


@pytest.mark.parametrize("kind", ["toml", "tree"])
def test_both_accept_every_shipped_document(kind: str, tmp_path: Path) -> None:
    for document in documents(kind):
        assert ours(kind, document, tmp_path) == ""
        schema_of(kind).validate(document)


@pytest.mark.parametrize("kind", ["toml", pytest.param("tree", marks=pytest.mark.slow)])
def test_both_judge_mutated_documents_alike(kind: str, tmp_path: Path) -> None:
    """150 seeded mutants per front door; each mutation, which knows a generator's keys, says which verdict is right."""
    dice, schema = random.Random(20), schema_of(kind)
    good = [document for document in documents(kind) if document["job"].get("task", "vfm") == "vfm"]
    seen: dict[tuple[str, bool], int] = {}
    while sum(seen.values()) < MUTANTS:
        document = copy.deepcopy(dice.choice(good))
        mutation = dice.choice(MUTATIONS)
        right = mutation(kind, document, dice)
        if right is None:
            continue
        told = ours(kind, document, tmp_path)
        errors = [f"{error.json_path}: {error.message[:200]}" for error in schema.iter_errors(document)]
        where = f"{mutation.__name__} #{sum(seen.values())}\nours: {told}\ntheirs: {errors}\n{document}"
        assert (not told) == right, where
        assert (not errors) == right, where
        seen[mutation.__name__, right] = seen.get((mutation.__name__, right), 0) + 1
    invalid = sum(count for (_, right), count in seen.items() if not right)
    assert invalid >= MUTANTS // 2
    assert MUTANTS - invalid >= MUTANTS // 20, "too few valid ones to notice a schema that refuses everything"
    assert {mutation.__name__ for mutation in MUTATIONS} - {name for name, _ in seen} <= {"left_out"}


@pytest.mark.parametrize("kind", ["toml", "tree"])
def test_no_section_takes_an_unknown_key(kind: str, tmp_path: Path) -> None:
    good, schema = documents(kind)[0], schema_of(kind)
    for path in sections(good):
        document = copy.deepcopy(good)
        put(document, (*path, "no_such_key"), 1)
        assert "no_such_key" in ours(kind, document, tmp_path), path
        assert list(schema.iter_errors(document)) != [], path


@pytest.mark.parametrize("kind", ["toml", "tree"])
@pytest.mark.parametrize(("rule", "key", "value"), OURS_ALONE, ids=[row[0] for row in OURS_ALONE])
def test_what_json_schema_cannot_say_is_caught_by_the_loader(
    rule: str, key: str, value: Any, kind: str, tmp_path: Path
) -> None:
    document = documents(kind)[0]
    put(document, place(kind, key), value)
    assert ours(kind, document, tmp_path) != ""
    assert list(schema_of(kind).iter_errors(document)) == []


@pytest.mark.parametrize("kind", ["toml", "tree"])
@pytest.mark.parametrize("value", [3, [], "text", "${trainer.max_iter}"])
def test_the_projects_own_data_is_a_table_of_anything(kind: str, value: Any, tmp_path: Path) -> None:
    document = {**documents(kind)[0], "custom": {"a": [{"b": "${x"}], "c d": {}}}
    assert ours(kind, document, tmp_path) == ""
    schema_of(kind).validate(document)
    document["custom"] = value
    assert "custom: expected a table" in ours(kind, document, tmp_path)
    assert list(schema_of(kind).iter_errors(document)) != []


def test_two_alternative_caps_are_caught_by_the_loader(tmp_path: Path) -> None:
    for kind in ("toml", "tree"):
        document = next(d for d in documents(kind) if d["job"]["experiment"] == "vision_sft_tiny")
        put(document, ("dataloader_train", "max_samples_per_batch"), 4)
        put(document, ("dataloader_train", "max_sequence_length"), 4096)
        assert "cannot both be set" in ours(kind, document, tmp_path)
        assert list(schema_of(kind).iter_errors(document)) == []


def test_recipes_of_other_packages_are_left_to_the_loader(tmp_path: Path) -> None:
    """The schema cannot know their names, and holds their files to the plain types only."""
    document: Doc = {"job": {"experiment": "mine"}, "trainer": {"max_iter": 0}}
    assert "no recipe is named 'mine'" in ours("toml", document, tmp_path)
    assert list(schema_of("toml").iter_errors(document)) == []
    document["trainer"]["max_iter"] = "many"
    assert list(schema_of("toml").iter_errors(document)) != []


def test_the_schema_alone_refuses_a_class_that_is_named_by_another_of_its_names(tmp_path: Path) -> None:
    document = to_dict(get_recipe(SHIPPED[0]))
    document["scheduler"]["type"] += ".Config"
    assert ours("tree", document, tmp_path) == ""
    assert list(schema_of("tree").iter_errors(document)) != []


def test_the_tree_schema_of_a_recipe_has_its_values_as_defaults() -> None:
    schema = json.loads(schema_text("tree", "moving_shapes"))
    assert schema["properties"]["job"]["anyOf"][0]["properties"]["group"]["default"] == "demo"
    loop = schema["properties"]["trainer"]["anyOf"][0]["properties"]
    assert loop["max_iter"]["default"] == 800
    clip = loop["callbacks"]["anyOf"][0]["properties"]["grad_clip"]["anyOf"]
    assert any(entry.get("properties", {}).get("clip_norm", {}).get("default") == 1.0 for entry in clip)
    jsonschema.Draft202012Validator(schema).validate(to_dict(get_recipe("moving_shapes")))


def test_docs_ranges_and_defaults_are_in_the_schema() -> None:
    found = schema_of("tree").schema["$defs"]["worldsmith.training.run_config.LoopConfig"]["properties"]["max_iter"]
    assert found == {
        "description": "Number of optimizer steps of the complete run.",
        "default": 500,
        "anyOf": [{"type": "integer", "minimum": 1}, {"$ref": "#/$defs/reference"}],
    }
