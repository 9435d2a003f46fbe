"""How deep and how large a config may be: beyond it one clear mistake, soon, and no traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from worldsmith.config import ConfigError
from worldsmith.config.errors import SHOWN
from worldsmith.config.load import load
from worldsmith.config.text_file import MAX_VALUES
from worldsmith.config.toml import recipe_toml
from worldsmith.config.tree import paths, read_config

JOB = '[job]\nexperiment = "small"\n'
DEEP: dict[str, Callable[[int], str]] = {
    "list.toml": lambda n: f"{JOB}[custom]\nx = {'[' * n}{']' * n}\n",
    "table.toml": lambda n: f"{JOB}[custom]\n\nx = {'{a = ' * n}1{'}' * n}\n",
    "header.toml": lambda n: f"{JOB}[custom{'.a' * n}]\nb = 1\n",
    "dotted.toml": lambda n: f"{JOB}[custom]\nx{'.a' * n} = 1\n",
    "together.toml": lambda n: (
        f"{JOB}[custom{'.a' * (n // 9)}]\nx{'.a' * (n // 9)} = {'[' * (n // 9)}{']' * (n // 9)}\n"
    ),
    "list.yaml": lambda n: f"recipe: small\ncustom:\n  x: {'[' * n}{']' * n}\n",
    "block.yaml": lambda n: "recipe: small\ncustom:\n" + "".join(f"{' ' * i}a:\n" for i in range(1, n)),
    "list.json": lambda n: f'{{"recipe": "small",\n"custom": {{"x": {"[" * n}{"]" * n}}}}}\n',
}
LINES = {"table.toml": 5, "header.toml": 3, "list.yaml": 3, "block.yaml": 65, "list.json": 2}


def mistakes(path: Path, text: str) -> ConfigError:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    return caught.value


@pytest.mark.parametrize("name", DEEP)
def test_what_is_nested_too_deeply_is_one_mistake_at_its_place(name: str, tmp_path: Path) -> None:
    [problem] = mistakes(tmp_path / name, DEEP[name](400)).problems
    assert problem.message == "nested more than 64 levels deep"
    assert problem.line == LINES.get(name, 4)
    assert problem.column


@pytest.mark.parametrize("name", DEEP)
def test_some_levels_are_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(DEEP[name](50))
    assert load(str(tmp_path / name)).tree.custom


@pytest.mark.parametrize("text", ["[" * 400, "[" * 400 + "]" * 400, "{a: " * 400 + "1" + "}" * 400])
def test_a_deep_word_is_one_short_mistake(text: str, t: ModuleType) -> None:
    with pytest.raises(ConfigError) as caught:
        load("small", [f"+optimizer.lr_multipliers.x={text}"])
    [problem] = caught.value.problems
    assert "nested more than 64 levels deep" in problem.message
    assert len(str(caught.value)) < 800


def test_references_in_references_without_end_are_one_mistake() -> None:
    with pytest.raises(ConfigError, match="more than 64 references in one string") as caught:
        load("small", [f"job.name={'${oc.env:NOT_SET,' * 400}x{'}' * 400}"])
    assert len(caught.value.problems) == 1


MANY: dict[str, Callable[[int], str]] = {
    "keys.toml": lambda n: f"{JOB}[trainer]\n" + "".join(f"key{i} = 1\n" for i in range(n)),
    "sections.toml": lambda n: JOB + "".join(f"[key{i}]\n" for i in range(n)),
    "keys.yaml": lambda n: "recipe: small\ntrainer:\n" + "".join(f"  key{i}: 1\n" for i in range(n)),
    "keys.json": lambda n: '{"recipe": "small"' + "".join(f', "key{i}": 1' for i in range(n)) + "}",
}


@pytest.mark.parametrize("name", MANY)
def test_a_config_with_too_many_values_is_one_mistake(name: str, tmp_path: Path) -> None:
    [problem] = mistakes(tmp_path / name, MANY[name](MAX_VALUES + 1)).problems
    assert problem.message.startswith(f"more than {MAX_VALUES} values")
    assert problem.line == (1 if name == "keys.json" else MAX_VALUES + 1)


@pytest.mark.parametrize("name", MANY)
def test_only_so_many_mistakes_are_shown_and_looked_into(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **options: calls.append(real) or real(*given, **options)

    for module in (recipe_toml, read_config):
        monkeypatch.setattr(module, "did_you_mean_path", counted(module.did_you_mean_path))
    monkeypatch.setattr(paths, "starts_with", counted(paths.starts_with))
    error = mistakes(tmp_path / name, MANY[name](1000))
    assert len(error.problems) == 1000
    assert 0 < len(calls) <= SHOWN
    assert str(error).startswith("1000 mistakes in the config")
    assert str(error).count("has no ") == SHOWN
    assert str(error).endswith("and 900 more; fix these first")
