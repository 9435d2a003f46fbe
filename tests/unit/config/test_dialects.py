"""Dialects: detection by keys, translation with places kept, and nothing dropped silently."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from worldsmith.config import ConfigError, dialects
from worldsmith.config.dialects import RunDialect, StackTranslation, detect_dialect, dialect, dialect_names
from worldsmith.config.load import load


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "_DIALECTS", dict(dialects._DIALECTS))

    @dialect("engine", claims=lambda data: "args" in data)
    def read(stack: StackTranslation) -> None:
        """Files of an engine."""
        stack.put("recipe", "small")
        stack.move("args.iters", "trainer.max_iter")
        stack.move("args.lr", "optimizer.lr", float)
        stack.move("args.betas", "optimizer.betas")
        stack.move("args.model.decay", "optimizer.weight_decay")
        stack.move("args.items[1].folder", "checkpoint.load_path")
        stack.ignore("args.color", "logs have none")
        stack.refuse("args.cloud", "there is no cloud")
        if stack.get("args.name") == "bad":
            stack.problem("args.name", "that is a bad name")
        stack.put("job.name", stack.get("args.name", "engine"), source="args.name")


Write = Callable[..., list[str]]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def files(*texts: str) -> list[str]:
        for index, text in enumerate(texts):
            Path(f"{index}.yaml").write_text(text)
        return [f"{index}.yaml" for index in range(len(texts))]

    return files


def test_ours_is_the_first_dialect() -> None:
    assert dialect_names()[:1] == ["worldsmith"]
    assert "engine" in dialect_names()


def test_the_merged_files_are_translated_and_words_come_last(write: Write) -> None:
    paths = write(
        "args:\n  lr: 1\n  betas: [0.1, 0.2]\n  items: [{folder: x}, {folder: y}]\n", "args: {iters: 5, color: 1}\n"
    )
    loaded = load(paths, ["optimizer.eps=1e-6", "scheduler.warm_up_steps=[1]"])
    tree = loaded.tree
    assert (tree.trainer.max_iter, tree.optimizer.lr, tree.optimizer.eps, tree.job.name) == (5, 1.0, 1e-6, "engine")
    assert (tree.optimizer.betas, tree.checkpoint.load_path) == ([0.1, 0.2], "y")
    assert loaded.warnings == ["1.yaml:1: args.color has no effect: logs have none"]
    assert str(loaded.provenance["trainer", "max_iter"]) == "1.yaml:1"
    assert str(loaded.provenance["optimizer", "lr"]) == "0.yaml:2"


def test_mistakes_are_shown_where_they_were_written(write: Write) -> None:
    paths = write(
        "args:\n  iters: x\n  lr: [1]\n  betas: [0.1, y]\n  lrr: 1\n",
        "args:\n  cloud: 1\n  name: bad\nargz: {a: {b: 1}}\n",
    )
    with pytest.raises(ConfigError) as caught:
        load(paths)
    found = [(p.file, p.line, p.column, p.path) for p in caught.value.problems]
    assert found == [
        ("0.yaml", 2, 10, "trainer.max_iter"),
        ("0.yaml", 3, 7, "args.lr"),
        ("0.yaml", 4, 16, "optimizer.betas[1]"),
        ("0.yaml", 5, 3, "args.lrr"),
        ("1.yaml", 2, 10, "args.cloud"),
        ("1.yaml", 3, 9, "args.name"),
        ("1.yaml", 4, 1, "argz"),
    ]
    text = str(caught.value)
    assert "did you mean 'args.lr'?" in text
    assert "did you mean 'args'?" in text
    assert "there is no cloud" in text


def test_a_whole_unknown_section_is_one_mistake(write: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write("args: {iters: 1, deep: {a: {b: 1}, c: 2}}\n"))
    assert [problem.path for problem in caught.value.problems] == ["args.deep"]


def test_files_of_two_dialects_or_of_none_are_refused_with_the_way_out(write: Write) -> None:
    both = write("recipe: small\nargs: {iters: 1}\n")
    with pytest.raises(ConfigError, match=r"several dialects: worldsmith, engine") as caught:
        load(both)
    assert "`dialect: worldsmith`" in str(caught.value)
    with pytest.raises(ConfigError, match=r"dialects: worldsmith \(.*\); engine \(Files of an engine\.\)"):
        load(write("arks: {}\nwhatever: 1\n"))
    assert load(write("args: {iters: 3}\ndialect: engine\n")).tree.trainer.max_iter == 3
    with pytest.raises(ConfigError, match="did you mean 'engine'"):
        load(write("args: {}\ndialect: engin\n"))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"recipe": "x"}, "worldsmith"),
        ({"trainer": {}, "optimzer": {}}, "worldsmith"),
        ({"model": {"config": {}}}, "worldsmith"),
        ({"model": {"network_config": {}}, "args": {}}, "engine"),
    ],
)
def test_detection_by_keys(data: dict[str, object], name: str) -> None:
    assert detect_dialect(data).name == name


def test_a_name_is_taken_once() -> None:
    def read(stack: StackTranslation) -> None: ...

    read.__module__ = "another"
    with pytest.raises(ValueError, match="'engine' of another is already registered by"):
        dialect("engine", claims=bool)(read)


def test_a_run_dialect_imports_its_functions_only_for_files_with_its_suffixes() -> None:
    found = RunDialect(name="x", recipe="x", suffixes=(".yaml", ".yml"), claims="no_module:claims", read="no_module:r")
    assert not found.claims_files(["run.toml"])
    assert not found.claims_files(["a.yaml", "b.json"])
    with pytest.raises(ModuleNotFoundError, match="no_module"):
        found.claims_files(["A.YAML", "b.yml"])


def test_no_shipped_dialect_imports_its_parts() -> None:
    code = (
        "import sys\nfrom worldsmith.config.dialects import find_run_dialect, shipped_dialects\n"
        "assert find_run_dialect(['run.txt']) is None\n"
        "print([name for name in sys.modules if name.count('.') > 2 and 'worldsmith.dialects.' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
