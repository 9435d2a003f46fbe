"""The Configurable pattern: what a class body may hold, types on set, build, docs."""

from __future__ import annotations

import copy
import sys
import types
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from worldsmith.config import Config, Configurable, ref
from worldsmith.config.declare.field_docs import field_docs


class Engine(Configurable):
    class Config(Configurable.Config):
        power: int = 3
        """Horse powers."""
        names: list[str] = field(default_factory=list)
        parts: dict[str, float] = field(default_factory=dict)
        maybe: int | None = None

    def __init__(self, config: Config, *, fuel: str, colour: str = "red") -> None:
        self.config, self.fuel, self.colour = config, fuel, colour


class Diesel(Engine):
    pass


class Turbo(Engine):
    class Config(Engine.Config):
        boost: float = 1.5
        """Pressure in bar."""


def test_a_config_builds_its_own_component_with_a_deep_copy() -> None:
    config = Engine.Config(names=["a"])
    built = config.build(fuel="oil")
    built.config.names.append("b")
    assert type(built) is Engine
    assert built.fuel == "oil"
    assert config.names == ["a"]


def test_a_subclass_without_a_config_gets_its_own_and_builds_itself() -> None:
    assert type(Diesel.Config(power=1).build(fuel="x")) is Diesel
    assert type(Engine.Config().build(fuel="x")) is Engine
    assert Turbo.Config(boost=2).boost == 2.0
    assert isinstance(Turbo.Config(), Engine.Config)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("x: list[int] = []", "field(default_factory=lambda: [])"),
        ("x = 3", "x: int"),
        ("x: Engine.Config = Engine.Config()", "default_factory=Engine.Config"),
        ("check: int = 3", "another name"),
        ("list_warnings: bool = True", "another name"),
        ("type: str = ''", "another name"),
        ("custom: int = 3", "another name"),
        ("_x: int = 3", "must not start with"),
    ],
)
def test_a_class_body_that_breaks_the_rules_says_how_to_mend_it(body: str, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        exec(f"class Bad(Config):\n    {body}", {"Config": Config, "Engine": Engine, "__name__": __name__})
    assert words in str(caught.value)


def test_the_root_of_a_tree_alone_has_a_field_custom() -> None:
    """Anywhere else a dump would leave it out without a word."""
    with pytest.raises(
        TypeError, match="the name 'custom' is the top-level field for custom values of the user's project"
    ):
        type("Config", (Engine.Config,), {"__annotations__": {"custom": "int"}, "custom": 3, "__module__": __name__})
    body = "custom: dict[str, int] = field(default_factory=dict)\n    _root: ClassVar[bool] = True"
    names = {"Config": Config, "ClassVar": ClassVar, "field": field, "__name__": __name__}
    exec(f"class Root(Config):\n    {body}", names)
    assert names["Root"]().custom == {}


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        ("tuple[int, int]", "list"),
        ("set[str]", "list"),
        ("Path", "str"),
        ("dict[int, str]", "dict[str"),
        ("list", "list[int]"),
        ("Unknown", "module level"),
    ],
)
def test_a_field_type_that_is_no_plain_data_is_refused(hint: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("made_up")
    monkeypatch.setitem(sys.modules, "made_up", module)
    module.__dict__.update({"Config": Config, "Path": Path})
    exec(f"from __future__ import annotations\nclass Bad(Config):\n    x: {hint}", module.__dict__)
    with pytest.raises(TypeError) as caught:
        module.Bad(x=1)
    assert words in str(caught.value)


def test_an_aliased_or_foreign_config_class_is_refused() -> None:
    with pytest.raises(TypeError, match=r"class Config\(Engine.Config\)"):
        type("Thief", (Engine,), {"Config": Engine.Config})
    with pytest.raises(TypeError, match=r"class Config\(Configurable.Config\)"):
        type("Thief", (Configurable,), {"Config": Configurable.Config})
    with pytest.raises(TypeError, match=r"Stranger.Config must derive from Engine.Config"):
        type("Stranger", (Engine,), {"Config": type("Config", (Configurable.Config,), {})})
    with pytest.raises(TypeError, match=r"must derive from Configurable.Config"):
        type("Plain", (Configurable,), {"Config": type("Config", (), {})})


def test_a_constructor_that_swallows_keywords_is_refused() -> None:
    with pytest.raises(TypeError, match="hide typos"):

        class Sponge(Configurable):
            def __init__(self, config: Any, **rest: Any) -> None: ...


def test_unknown_and_missing_runtime_objects_list_what_the_constructor_takes() -> None:
    with pytest.raises(TypeError, match=r"has no parameter 'fule'; did you mean 'fuel'\? .*fuel, colour \(optional\)"):
        Engine.Config().build(fule="x")
    with pytest.raises(TypeError, match=r"Engine needs fuel"):
        Engine.Config().build()


def test_an_unresolved_tree_is_not_built() -> None:
    with pytest.raises(TypeError, match=r"power is still the reference '\$\{a.b\}'"):
        Engine.Config(power=ref("a.b")).build(fuel="x")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"power": "3"}, "expected an integer, found '3' (text)"),
        ({"power": True}, "found true"),
        ({"power": 3.0}, "found 3.0 (a number)"),
        ({"names": ["a", 1]}, "names[1]: expected text"),
        ({"names": "abc"}, "expected a list"),
        ({"parts": {"a.b": "x"}}, 'parts."a.b": expected a number'),
        ({"maybe": "x"}, "an integer or null"),
        ({"powr": 3}, "did you mean 'power'?"),
    ],
)
def test_types_and_names_are_checked_when_made_and_when_set(values: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError) as made:
        Engine.Config(**values)
    assert words in str(made.value)
    config = Engine.Config()
    with pytest.raises((TypeError, AttributeError)) as changed:
        setattr(config, *next(iter(values.items())))
    assert words in str(changed.value)
    assert config == Engine.Config()


def test_nan_and_numbers_that_no_float_holds_are_refused() -> None:
    with pytest.raises(TypeError):
        Turbo.Config(boost=float("nan"))
    with pytest.raises(TypeError):
        Turbo.Config(boost=10**5000)


def test_references_are_accepted_for_every_type() -> None:
    config = Engine.Config(power=ref("x"), names=["${y}"], parts={"a": ref("z")})
    assert (config.power, config.names, config.parts) == ("${x}", ["${y}"], {"a": "${z}"})


def test_configs_are_equal_and_copied_by_value_and_do_not_share_containers() -> None:
    names = ["a"]
    config = Engine.Config(names=names)
    names.append("b")
    assert config == copy.deepcopy(config) == Engine.Config(names=["a"])
    assert config != Engine.Config()
    assert Engine.Config() != Diesel.Config()


def test_field_docs_are_the_literals_after_the_fields_parents_included() -> None:
    assert field_docs(Turbo.Config) == {"power": "Horse powers.", "boost": "Pressure in bar."}
    assert field_docs(Diesel.Config) == {"power": "Horse powers."}
