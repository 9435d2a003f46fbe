"""Every form of a run leads to the same tree: TOML, YAML, JSON, Python, and the way back."""

from __future__ import annotations

import json
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from worldsmith.cli.main import main
from worldsmith.config import ConfigError, UserError, get_recipe, recipe_names
from worldsmith.config.load import load
from worldsmith.config.recipes.packages import import_recipes, registered
from worldsmith.config.recipes.registry import find_recipe
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.difference import find_changes
from worldsmith.config.tree.plain import to_dict, to_yaml
from worldsmith.config.tree.read_config import from_dict, from_yaml
from worldsmith.config.write.convert_config import convert
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.training.scheduler import LambdaLinear

ROOT = Path(__file__).parents[3]
SHIPPED = [name for name in recipe_names() if find_recipe(name).module.startswith("worldsmith.")]
EXAMPLES = [str(path) for path in sorted((ROOT / "examples/toml/sft_config").glob("*.toml"))]
QUICK = {"moving_shapes", "action_fd_droid_lora", *(name for name in SHIPPED if name.endswith("_tiny"))}
"""In the default run, what has a test per shipped recipe is shown of the tiny ones and of two others."""
EVERY, SOURCES = (
    [pytest.param(name, marks=[pytest.mark.slow] * (Path(name).stem not in QUICK)) for name in names]
    for names in (SHIPPED, [*SHIPPED, *EXAMPLES])
)
CHANGED = [
    'job.name=it\'s "a" b\\c',
    "optimizer.lr=3e-5",
    "optimizer.lr_multipliers={'a.b': 5.0, lm: 0.5}",
    "scheduler.cycle_lengths=[10, '${trainer.max_iter}']",
    "scheduler.warm_up_steps=[1, 2]",
    "scheduler.f_start=[0.0, 0.1]",
    "scheduler.f_max=[1.0, 0.5]",
    "scheduler.f_min=[0, 0]",
    "model.ema.enabled=false",
    "model.parallelism.data_parallel_shard_degree=2",
]
"""Within the sections of the recipe TOML."""
MULTIPLIERS = CHANGED[2]
"""A table of TOML joins that of the recipe, so that it cannot take the place of one that is not empty."""
BEYOND = [
    "dataloader_train.dataset.caption_suffix='a, b'",
    "trainer.max_consecutive_skipped=7",
    "~trainer.callbacks.iter_speed",
    "+trainer.callbacks.more={type: worldsmith.training.callbacks.grad_clip.GradClip, clip_norm: 2.0}",
    "scheduler={type: worldsmith.training.scheduler.LambdaSqrt}",
    "dataloader_train.dataset.conditioning_config={'0': 1.0}",
    "checkpoint.keep_latest_k=null",
]
"""Outside of them."""
OF_CLIPS = {"dataloader_train.dataset.caption_suffix='a, b'", "dataloader_train.dataset.conditioning_config={'0': 1.0}"}


def words_for(name: str, words: list[str]) -> list[str]:
    """Those words that fit the recipe's family."""
    return [word for word in words if word not in unfit(name)]


@cache
def unfit(name: str) -> set[str]:
    """A reasoner has no captions, and robot episodes have no such settings."""
    tree = load(name, [], keep_unset=True).raw
    has_clips = isinstance(tree.dataloader_train.dataset, VideoDataset.Config)
    return ({MULTIPLIERS} if tree.optimizer.lr_multipliers else set()) | (set() if has_clips else OF_CLIPS)


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and not find_changes(a, b, custom=True)


def same_run(made: Any, wanted: Any) -> bool:
    """The same tree, but for the name of the recipe, which each tree carries."""
    made.job.experiment = wanted.job.experiment
    return same(made, wanted)


def source(text_of: Any, tmp_path: Path, name: str) -> str:
    file = tmp_path / name
    file.write_text(text_of, encoding="utf-8")
    return str(file)


def loaded(name: str, words: list[str] | None = None) -> Loaded:
    return load(name, words or [], keep_unset=True)


def recipe_of(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> Any:
    """The tree of the recipe that the text of a module registers."""
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    before = set(registered())
    try:
        import_recipes(module)
        (name,) = set(registered()) - before
        return get_recipe(name)
    finally:
        sys.modules.pop(module, None)
        for name in set(registered()) - before:
            del registered()[name]


@pytest.mark.parametrize("words", [[], CHANGED], ids=["plain", "changed"])
@pytest.mark.parametrize("name", SOURCES, ids=lambda name: Path(name).name)
def test_toml_to_tree_to_toml_is_the_same_tree(name: str, words: list[str], tmp_path: Path) -> None:
    first = loaded(name, words_for(name, words))
    converted = convert(first, "toml")
    assert not converted.rest
    second = loaded(source(converted.text, tmp_path, "run.toml"))
    assert same(second.raw, first.raw)
    assert second.tree == first.tree
    assert convert(second, "toml").text == converted.text


@pytest.mark.parametrize("words", [[], CHANGED, BEYOND], ids=["plain", "changed", "beyond"])
@pytest.mark.parametrize("to", ["yaml", "json"])
@pytest.mark.parametrize("name", SOURCES, ids=lambda name: Path(name).name)
def test_yaml_and_json_are_whole_trees_that_load_back(name: str, to: str, words: list[str], tmp_path: Path) -> None:
    first = loaded(name, words_for(name, words))
    second = loaded(source(convert(first, to).text, tmp_path, f"run.{to}"))
    assert same(second.raw, first.raw)
    assert second.tree == first.tree


@pytest.mark.parametrize("words", [[], CHANGED, BEYOND], ids=["plain", "changed", "beyond"])
@pytest.mark.parametrize("name", SOURCES, ids=lambda name: Path(name).name)
def test_python_is_a_module_whose_recipe_has_the_same_tree(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loaded(name, words_for(name, words))
    text = convert(first, "python", name="converted").text
    assert "starts_from=" in text
    assert all(len(line) <= 160 for line in text.splitlines())
    assert same_run(recipe_of(text, tmp_path, monkeypatch, f"converted_{abs(hash((name, *words)))}"), first.raw)


@pytest.mark.parametrize("to", ["toml", "yaml", "json"])
def test_a_stack_of_files_becomes_one_that_leads_to_the_same_run(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = [str(ROOT / "examples/yaml" / name) for name in ("moving_shapes.yaml", "cpu_run.yaml")]
    words = ["trainer.max_iter=7", "optimizer.lr=3e-4"]
    out = tmp_path / f"run.{to}"
    assert main(["config", "convert", *stack, *words, "--to", to, "-o", str(out)]) == 0
    assert loaded(str(out)).tree == load(stack, words, keep_unset=True).tree
    assert main(["config", "convert", *stack, "trainer.max_itr=7", "--to", to]) == 2
    assert "did you mean 'trainer.max_iter'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", EVERY)
def test_a_tree_of_no_recipe_becomes_a_module_that_writes_it_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = source(to_yaml(get_recipe(name)).replace(f"experiment: {name}", "experiment: unknown"), tmp_path, "r.yaml")
    first = loaded(file)
    text = convert(first, "python").text
    assert "starts_from=" not in text
    assert same_run(recipe_of(text, tmp_path, monkeypatch, f"whole_{name}"), first.raw)
    with pytest.raises(UserError, match=r"starts from a registered recipe, and job\.experiment is 'unknown'"):
        convert(first, "toml")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_tree_is_the_same_after_dict_yaml_and_json(name: str, tmp_path: Path) -> None:
    tree = get_recipe(name)
    assert same(from_dict(to_dict(tree, custom=True)), tree)
    assert same(from_yaml(to_yaml(tree, custom=True)), tree)
    assert same(loaded(source(convert(loaded(name), "json").text, tmp_path, "tree.json")).raw, tree)


@pytest.mark.parametrize("name", EVERY)
def test_what_the_toml_cannot_say_is_refused_or_given_as_words(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = loaded(name, words_for(name, [*CHANGED, *BEYOND]))
    tree = source(convert(first, "yaml").text, tmp_path, "run.yaml")
    assert main(["config", "convert", tree, "--to", "toml"]) == 2
    told = capsys.readouterr()
    assert not told.out
    refused = [line.strip() for line in told.err.splitlines() if line.startswith("  ")]
    assert {"trainer.max_consecutive_skipped", "scheduler"} <= set(refused)
    assert "trainer.callbacks.iter_speed" in refused
    (command,) = (line for line in told.err.splitlines() if line.startswith("YAML can express"))
    assert main([*shlex.split(command.partition("worldsmith ")[2]), "-o", str(tmp_path / "whole.yaml")]) == 0
    assert same(loaded(str(tmp_path / "whole.yaml")).raw, first.raw)

    toml, words = str(tmp_path / "run.toml"), tmp_path / "words.txt"
    assert main(["config", "convert", tree, "--to", "toml", "-o", toml, "--overrides", str(words)]) == 0
    assert same(loaded(toml, shlex.split(words.read_text(encoding="utf-8"))).raw, first.raw)


def test_the_words_beside_the_toml_are_printed_and_files_are_overwritten_by_force_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = loaded("moving_shapes", words_for("moving_shapes", [*CHANGED, *BEYOND]))
    tree = source(convert(first, "yaml").text, tmp_path, "run.yaml")
    toml, words = str(tmp_path / "run.toml"), tmp_path / "words.txt"
    assert main(["config", "convert", tree, "--to", "toml", "-o", toml, "--overrides", str(words)]) == 0
    capsys.readouterr()
    assert main(["config", "convert", tree, "--to", "toml", "-o", toml, "--print-overrides"]) == 2
    assert "--force overwrites it" in capsys.readouterr().err
    assert main(["config", "convert", tree, "--to", "toml", "-o", toml, "--force", "--print-overrides"]) == 0
    assert capsys.readouterr().out == words.read_text(encoding="utf-8")


def test_a_cap_that_replaces_the_recipes_other_cap_needs_no_word() -> None:
    """TOML has no null; the loader clears the alternative of a cap that a file sets."""
    first = loaded("moving_shapes", ["dataloader_train.max_sequence_length=4096"])
    assert first.raw.dataloader_train.max_samples_per_batch is None
    assert "max_sequence_length = 4096" in convert(first, "toml").text
    assert not convert(first, "toml").rest


def test_the_order_of_a_table_counts() -> None:
    """The first pattern that fits decides a learning rate."""
    one, two = ("optimizer.lr_multipliers={a: 1.0, b: 2.0}", "optimizer.lr_multipliers={b: 2.0, a: 1.0}")
    assert convert(loaded("moving_shapes", [one]), "toml").text != convert(loaded("moving_shapes", [two]), "toml").text


def test_the_projects_own_data_goes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[job]\nexperiment = "moving_shapes"\n[custom]\na = 1\n[custom.b]\n"c d" = [{ e = "${x}" }, { f = 1.5 }]\n'
    first = loaded(source(text, tmp_path, "own.toml"))
    assert first.raw.custom == {"a": 1, "b": {"c d": [{"e": "${x}"}, {"f": 1.5}]}}
    for to, name in (("toml", "2.toml"), ("yaml", "2.yaml"), ("json", "2.json")):
        assert same(loaded(source(convert(first, to).text, tmp_path, name)).raw, first.raw)
    assert same_run(recipe_of(convert(first, "python").text, tmp_path, monkeypatch, "own_data"), first.raw)


def test_dates_of_the_projects_own_data_go_to_toml_and_python_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[job]\nexperiment = "moving_shapes"\n[custom]\nd = 2026-01-02\nt = 03:04:05\nx = 1979-05-27T07:32:00Z\n'
    first = loaded(source(text, tmp_path, "own.toml"))
    assert same(loaded(source(convert(first, "toml").text, tmp_path, "2.toml")).raw, first.raw)
    assert same_run(recipe_of(convert(first, "python").text, tmp_path, monkeypatch, "own_dates"), first.raw)
    for to in ("yaml", "json"):
        with pytest.raises(UserError, match=r"custom\.d.*write it as text"):
            convert(first, to)


def test_infinity_has_no_form_in_json(tmp_path: Path) -> None:
    first = loaded("moving_shapes", ["trainer.callbacks.grad_clip.clip_norm=inf"])
    with pytest.raises(UserError, match=r"trainer\.callbacks\.grad_clip\.clip_norm: JSON cannot express inf"):
        convert(first, "json")
    for to in ("yaml", "toml"):
        assert same(loaded(source(convert(first, to).text, tmp_path, f"r.{to}")).raw, first.raw)


def test_a_recipe_of_another_module_is_imported_by_the_python_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = 'from worldsmith.config import recipe\n\n@recipe("lent", starts_from="moving_shapes")\ndef lent(config):\n'
    (tmp_path / "lent_recipes.py").write_text(f"{base}    config.trainer.seed = 5\n    return config\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import_recipes("lent_recipes")
    try:
        assert "import lent_recipes" in convert(loaded("lent"), "python", name="x").text
    finally:
        del registered()["lent"]
        sys.modules.pop("lent_recipes")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["moving_shapes", "--to", "yaml", "--name", "x"], "--name requires --to python"),
        (["moving_shapes", "--to", "json", "--print-overrides"], "--print-overrides requires --to toml"),
        (["moving_shapes", "--to", "toml", "--print-overrides"], "name the TOML file with -o FILE"),
        (["moving_shapes", "--to", "python", "--name", "moving_shapes"], "the recipe 'moving_shapes' already exists"),
        (["moving_shapse", "--to", "toml"], "moving_shapes"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "convert", *words]) == 2
    said = capsys.readouterr()
    assert told in said.err
    assert not said.out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"type": "x", "type": "y"}', "the key 'type' occurs twice"),
        ('{"type": }', "2.json:1:10: not valid JSON"),
        ('{"type": NaN}', "NaN is not a JSON number"),
        ('{"type": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "2.json:1:65: nested more than 64 levels deep"),
        ('{"type": "worldsmith.training.trainer.Trainer",\n\t"model": 3}', "2.json:2:2: model: expected"),
    ],
)
def test_a_json_file_with_a_mistake_is_a_config_error(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(source(text, tmp_path, "2.json"))
    assert told in str(caught.value)


def test_json_of_other_programs_is_read(tmp_path: Path) -> None:
    """Escaped surrogate pairs and tabs, which YAML does not know."""
    data = to_dict(get_recipe("moving_shapes"))
    data["job"]["name"] = "a \U0001f600"
    read = loaded(source(json.dumps(data, indent="\t"), tmp_path, "other.json"))
    assert read.raw.job.name == "a \U0001f600"


def test_changes_notice_type_and_order() -> None:
    one, two = get_recipe("moving_shapes"), get_recipe("moving_shapes")
    assert find_changes(one, two) == []
    two.scheduler = LambdaLinear.Config()
    two.trainer.callbacks = dict(reversed(two.trainer.callbacks.items()))
    assert [change.path for change in find_changes(one, two)] == [("scheduler",), ("trainer", "callbacks")]
