"""Recipes of other packages: entry points, `--import`, `--module --config`; each failure with its true cause."""

from __future__ import annotations

import builtins
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from worldsmith.config import ConfigError, get_recipe, recipe_names
from worldsmith.config.declare import class_tags
from worldsmith.config.recipes.packages import _LOADED, FAMILIES, import_recipes, load_installed, registered
from worldsmith.config.recipes.registry import adopt_function, find_recipe, is_recipe, lineage, recipe
from worldsmith.models.families import family_names, find_family

GOOD = """
from worldsmith.config import Config, recipe

class Tree(Config):
    steps: int = 3

@recipe("{name}")
def first() -> Tree:
    '''The first line.

    More.'''
    return Tree()

@recipe("{name}_longer", starts_from="{name}")
def longer(config: Tree) -> Tree:
    config.steps = 30
    return config

def free() -> Tree:
    return Tree(steps=7)

def helper(x):
    return x
"""


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a test registers, imports or trusts is gone after it."""
    before, modules = dict(registered()), set(sys.modules)
    monkeypatch.setattr(class_tags, "_TRUSTED", set(class_tags._TRUSTED))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield
    registered().clear()
    registered().update(before)
    _LOADED.clear()
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def install(
    folder: Path, package: str, code: str | None, *, point: str | None = None, group: str = "worldsmith.recipes"
) -> None:
    """A package with its dist-info, as pip leaves it behind, in a folder on sys.path."""
    if code is not None:
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text("")
        (folder / package / "recipes.py").write_text(code)
    info = folder / f"{package}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{package} = {point or package + '.recipes'}\n")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def test_an_installed_package_adds_its_recipes(tmp_path: Path) -> None:
    install(tmp_path / "site", "good_pack", GOOD.format(name="packed"))
    assert {"packed", "packed_longer"} <= set(recipe_names())
    assert get_recipe("packed_longer").steps == 30  # type: ignore[attr-defined]
    assert find_recipe("packed").doc == "The first line."
    assert "good_pack" in class_tags.trusted_packages()


def test_a_model_family_of_a_package_adds_its_recipes(tmp_path: Path) -> None:
    install(tmp_path / "site", "own_family", GOOD.format(name="familiar"), point="own_family:FAMILY", group=FAMILIES)
    (tmp_path / "site/own_family/__init__.py").write_text(
        "from worldsmith.models.families import Family\n"
        'FAMILY = Family(name="own_family", task="own_family.task:Task", recipes="own_family.recipes")\n'
    )
    assert {"familiar", "familiar_longer"} <= set(recipe_names())
    found = find_family("own_family")
    assert found is not None
    assert found.task == "own_family.task:Task"
    assert "own_family" in family_names()
    assert find_family("other_family") is None


def test_a_broken_package_stops_only_who_asks_for_its_recipes(tmp_path: Path) -> None:
    install(tmp_path / "site", "bad_pack", "import json\nimport not_there_at_all\n")
    install(tmp_path / "site", "lost_pack", None)
    install(tmp_path / "site", "taken_pack", GOOD.format(name="small"))
    install(tmp_path / "site", "good_pack", GOOD.format(name="packed"))
    assert get_recipe("small") is not None
    assert is_recipe("packed")
    with pytest.raises(ConfigError) as caught:
        get_recipe("absent")
    text = str(caught.value)
    for expected in (
        "the recipes of bad_pack 1.2 (entry point 'bad_pack' of worldsmith.recipes) cannot be imported: "
        f"ModuleNotFoundError: No module named 'not_there_at_all', at {tmp_path}/site/bad_pack/recipes.py:2",
        "the recipes of lost_pack 1.2 (entry point 'lost_pack' of worldsmith.recipes) cannot be imported: "
        "module 'lost_pack' does not exist",
        "ValueError: recipe 'small' of taken_pack.recipes is already registered by",
        f"at {tmp_path}/site/taken_pack/recipes.py:7",
    ):
        assert expected in text, text


def test_our_own_recipes_do_not_wait_for_installed_packages(tmp_path: Path) -> None:
    install(tmp_path / "site", "slow_pack", "raise SystemExit('imported')")
    assert is_recipe("small")
    assert not _LOADED
    assert "SystemExit: imported" in load_installed()[0].message


def test_import_finds_modules_of_the_working_directory_and_trusts_them(tmp_path: Path) -> None:
    (tmp_path / "my_runs.py").write_text(GOOD.format(name="mine"))
    module = import_recipes("my_runs")
    assert [name for name, _ in lineage("mine_longer")] == ["mine", "mine_longer"]
    assert "my_runs" in class_tags.trusted_packages()
    assert adopt_function(module, "mine") == adopt_function(module, "first") == "mine"
    assert get_recipe(adopt_function(module, "free")).steps == 7  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"no recipe and no function 'fre'(.|\n)*did you mean 'free'") as caught:
        adopt_function(module, "fre")
    assert "it has: free, mine, mine_longer" in str(caught.value), "helpers are not offered"
    with pytest.raises(ConfigError, match=r"'helper' must have no required arguments, found: x"):
        adopt_function(module, "helper")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("no_such_module", None, "module 'no_such_module' does not exist"),
        ("no_such.module", None, "module 'no_such' does not exist"),
        ("broken", "import json\n1 / 0\n", r"ZeroDivisionError: division by zero, at .*broken.py:2"),
        ("typo", "def f(:\n    pass\n", r"SyntaxError: .*, at .*typo.py:1"),
        ("needs", "import not_there_at_all\n", r"No module named 'not_there_at_all', at .*needs.py:1"),
        ("taken", GOOD.format(name="small"), r"recipe 'small' of taken is already registered by"),
        ("leaving", "raise GeneratorExit\n", r"'leaving' cannot be imported: GeneratorExit: , at .*leaving.py:1"),
        (
            "own",
            "class Own(BaseException): ...\nraise Own('no')\n",
            r"'own' cannot be imported: Own: no, at .*own.py:2",
        ),
        ("like", "class Like(KeyboardInterrupt): ...\nraise Like('no')\n", r"'like' cannot be imported: Like: no, at"),
        ("runs/mine.py", None, "write runs.mine"),
        ("json", None, "is part of Python's standard library"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(tmp_path: Path, name: str, code: str | None, words: str) -> None:
    if code is not None:
        (tmp_path / f"{name}.py").write_text(code)
    before = dict(registered())
    with pytest.raises(ConfigError, match=words):
        import_recipes(name)
    assert registered() == before, "the recipes registered before the mistake are taken back"


def test_ctrl_c_while_a_module_is_imported_stays_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(
        "import signal\n"
        "before = signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores the signal
        "try:\n    signal.raise_signal(signal.SIGINT)\n"
        "finally:\n    signal.signal(signal.SIGINT, before)\n"
    )
    with pytest.raises(KeyboardInterrupt):
        import_recipes("interrupted")


@pytest.mark.parametrize("error", ["SystemExit", "GeneratorExit"])
def test_a_recipe_that_leaves_the_program_is_named(error: str) -> None:
    @recipe("leaving")
    def leaving() -> Any:
        raise getattr(builtins, error)("no")

    with pytest.raises(ConfigError, match=rf"the recipe 'leaving' cannot be built: {error}: no"):
        get_recipe("leaving")


def test_what_starts_from_another_recipe_gets_its_fresh_tree(t: ModuleType) -> None:
    @recipe("small_fast", starts_from="small")
    def small_fast(config: t.Trainer.Config) -> t.Trainer.Config:  # type: ignore[name-defined]
        """Quick."""
        config.trainer.max_iter = 5
        return config

    assert get_recipe("small_fast").trainer.max_iter == 5  # type: ignore[attr-defined]
    assert get_recipe("small").trainer.max_iter == 500  # type: ignore[attr-defined]
    assert small_fast().trainer == get_recipe("small_fast").trainer  # type: ignore[attr-defined]
    assert get_recipe("small_fast").job.experiment == "small_fast", "a tree carries the name of its recipe"  # type: ignore[attr-defined]
    assert (find_recipe("small_fast").starts_from, find_recipe("small_fast").doc) == ("small", "Quick.")


def test_mistakes_in_recipes_are_named(t: ModuleType) -> None:
    with pytest.raises(TypeError, match=r"receives its config as one argument: `def f\(config"):

        @recipe("bad", starts_from="small")
        def f() -> t.Trainer.Config: ...  # type: ignore[name-defined]

    with pytest.raises(TypeError, match=r"must have no required arguments, found: config;(.|\n)*starts_from"):
        recipe("bad")(lambda config: config)  # type: ignore[arg-type, misc]
    with pytest.raises(TypeError, match="write the recipe's name"):
        recipe(t.small)  # type: ignore[call-overload]
    recipe("forgot", starts_from="small")(lambda config: None)  # type: ignore[arg-type, return-value, misc]
    with pytest.raises(ConfigError, match=r"returned NoneType(.|\n)*return config"):
        get_recipe("forgot")
    recipe("orphan", starts_from="smal")(lambda config: config)
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        get_recipe("orphan")
    recipe("egg", starts_from="hen")(lambda config: config)
    recipe("hen", starts_from="egg")(lambda config: config)
    with pytest.raises(ConfigError, match="starts from itself: egg -> hen -> egg"):
        get_recipe("egg")
