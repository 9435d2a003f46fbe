"""Edge cases in which the best-known system of nested component configs does something silent or surprising.

Each test is named after the case; its docstring says what happened there. Here the outcome is the better one.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections import namedtuple
from dataclasses import field, fields
from types import ModuleType
from typing import Any

import pytest

from worldsmith.config import Config, ConfigError, Configurable, get_recipe
from worldsmith.config.command_line.typed_flags import read_flags, split_flags
from worldsmith.config.declare.configurable import walk
from worldsmith.config.load import read_draft
from worldsmith.config.tree.config_draft import finish
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.read_config import from_dict

POST_INITS: list[str] = []


class Part(Configurable):
    class Config(Configurable.Config):
        size: int = 1
        """How big."""
        names: list[str] = field(default_factory=list)

        def __post_init__(self) -> None:
            POST_INITS.append("Part")

        def check(self) -> None:
            if self.size < 0:
                raise ValueError("size must not be negative")

        def doubled(self) -> int:
            return 2 * self.size

    def __init__(self, config: Config, *, network: str = "") -> None:
        self.config, self.network = config, network


class SubPart(Part):
    """Has no Config of its own."""


class Sharper(Part):
    class Config(Part.Config):
        edge: float = 0.5

        def doubled(self) -> int:
            return super().doubled() + 1


class Coloured(Configurable):
    class Config(Configurable.Config):
        colour: str = "red"

    def __init__(self, config: Config) -> None:
        self.config = config


class Both(Sharper, Coloured):
    class Config(Sharper.Config, Coloured.Config):
        pass


def test_a_subclass_without_its_own_config_builds_itself() -> None:
    """There: builds the parent, silently."""
    assert type(SubPart.Config(size=2).build()) is SubPart
    assert type(Part.Config().build()) is Part


def test_an_aliased_config_is_refused_and_the_parent_still_builds_itself() -> None:
    """There: the parent's Config builds the child from then on."""
    with pytest.raises(TypeError, match=r"write|write its own: `class Config\(Part.Config\)"):
        type("Thief", (Part,), {"Config": Part.Config})
    assert type(Part.Config().build()) is Part


def test_no_decorator_is_needed_and_empty_slots_lose_no_field() -> None:
    """There: a TypeError without the decorator; with an empty `__slots__` the new fields do not exist."""

    class Slotted(Part):
        class Config(Part.Config):
            __slots__ = ()
            extra: int = 7

    assert [entry.name for entry in fields(Sharper.Config)] == ["size", "names", "edge"]
    assert Slotted.Config(extra=8).extra == 8
    assert Slotted.Config(extra=8) != Slotted.Config()


def test_a_config_of_another_kind_is_refused() -> None:
    """There: accepted, and has no build."""
    with pytest.raises(TypeError, match=r"must derive from Configurable.Config; write"):
        type("Odd", (Configurable,), {"Config": type("Config", (), {"x": 1})})


def test_configs_take_keywords_only_without_anyone_saying_so() -> None:
    """There: a TypeError for whoever forgets kw_only or slots."""
    with pytest.raises(TypeError, match=r"accepts keywords only: Part.Config\(size=…"):
        Part.Config(3)  # type: ignore[misc]


def test_unknown_names_are_refused_with_the_near_one() -> None:
    """There: refused too, without advice."""
    with pytest.raises(TypeError, match="did you mean 'size'"):
        Part.Config(siz=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="did you mean 'size'"):
        Part.Config().siz = 3  # type: ignore[attr-defined]


def test_a_wrong_type_is_refused_when_it_is_set() -> None:
    """There: accepted in Python, since only the command line converts."""
    with pytest.raises(TypeError, match=r"Part.Config.size: expected an integer, found 'hello'"):
        Part.Config(size="hello")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"names\[0\]: expected text"):
        Part.Config().names = [1]  # type: ignore[list-item]


def test_build_refuses_a_field_and_an_unknown_name_as_runtime_object() -> None:
    """There: a field is refused; an unknown name is swallowed by owners that take **kwargs."""
    for name in ("size", "netwrok"):
        with pytest.raises(TypeError, match=rf"Part has no parameter '{name}'(.|\n)*network \(optional\)"):
            Part.Config().build(**{name: 3})
    with pytest.raises(TypeError, match="hide typos"):
        exec("class Sponge(Part):\n    def __init__(self, config, **rest): ...", {"Part": Part})


def test_what_a_built_component_does_to_its_config_stays_there() -> None:
    """There: a nested list of the caller's config changes as well, since the copy is shallow."""
    config = Part.Config(names=["a"])
    before = json.dumps(to_dict(config))
    part = config.build(network="n")
    part.config.names.append("b")
    part.config.size = 9
    assert json.dumps(to_dict(config)) == before


def test_post_init_runs_once_and_a_build_does_not_repeat_it() -> None:
    """There: it runs again at each build, so warnings repeat."""
    POST_INITS.clear()
    Part.Config().build()
    assert POST_INITS == ["Part"]


def test_super_without_arguments_works_in_a_config_method() -> None:
    """There: a TypeError, since the decorator replaces the class."""
    assert Sharper.Config(size=2).doubled() == 5


def test_two_parents_with_fields_may_be_joined() -> None:
    """There: a TypeError about the layout of slots."""
    config = Both.Config(edge=0.1, colour="blue", size=3)
    assert type(config.build()) is Both
    assert {"size", "names", "edge", "colour"} == {entry.name for entry in fields(config)}


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(("hint", "value"), [(Pair, Pair(1, 2)), (set[int], {1}), (tuple[int, int], (1, 2))])
def test_a_type_that_text_cannot_hold_is_refused_where_it_is_declared(hint: Any, value: Any) -> None:
    """There: to_dict crashes for named tuples; sets and dtypes become their repr, with a warning."""
    cls = type(Config)("Odd", (Config,), {"__annotations__": {"x": hint}, "__module__": __name__})
    with pytest.raises(TypeError, match=r"Odd.x: .* is not plain data and cannot be in a config; use"):
        cls(x=value)


def test_walking_enters_lists_and_dicts() -> None:
    """There: lists only."""
    tree = get_recipe("small")
    paths = {path for path, _ in walk(tree)}
    assert ("trainer", "callbacks", "grad_clip", "clip_norm") in paths
    assert ("optimizer", "betas", 0) in paths


def test_pickle_deepcopy_and_equality_are_by_value() -> None:
    """There: they work too; a hash does not exist, here neither, since configs can be changed."""
    config = Both.Config(names=["a"])
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
    with pytest.raises(TypeError, match="unhashable"):
        hash(config)


@pytest.mark.parametrize("name", ["small", "small_vlm"])
def test_a_recipe_built_twice_is_equal_and_dumps_to_the_same_text(name: str) -> None:
    """There: unequal, and the text holds memory addresses; nothing reads it back."""
    first, second = get_recipe(name), get_recipe(name)
    assert first == second
    assert json.dumps(to_dict(first)) == json.dumps(to_dict(second))
    assert " at 0x" not in json.dumps(to_dict(first))
    assert from_dict(json.loads(json.dumps(to_dict(first)))) == first


def flags(*words: str) -> Any:
    """The tree of the recipe `small` with typed flags."""
    _, typed = split_flags(words, ())
    draft, _ = read_draft("small")
    return finish(draft, read_flags(draft.tree, typed, draft.problems)).tree


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trainer.max_itre", "2"], "did you mean --trainer.max_iter?"),
        (["--trainer.max_iter", "abc"], "trainer.max_iter: expected an integer, found 'abc'"),
        (["--optimizer.lr", "-1"], "optimizer: lr must be above 0, found -1.0"),
    ],
)
def test_a_flag_that_is_wrong_is_a_config_error_whatever_reads_it(words: list[str], message: str) -> None:
    """There: a box and an exit, or a ValueError, depending on the release of a library."""
    with pytest.raises(ConfigError) as caught:
        flags(*words)
    assert message in str(caught.value)


def test_the_learning_rate_is_where_one_looks_for_it() -> None:
    """There: ``--optimizer.lr`` is unknown since the option moved."""
    assert flags("--optimizer.lr", "3e-4").optimizer.lr == 3e-4


@pytest.mark.parametrize(
    ("words", "value"),
    [(["{}"], True), (["{}", "true"], True), (["{}=True"], True), (["{}", "False"], False), (["{}=false"], False)],
)
def test_a_truth_value_is_written_as_one_likes(words: list[str], value: bool) -> None:
    """There: ``--flag False`` and ``--flag=False`` are rejected."""
    for name, default in (("ema.enabled", True), ("lora_enabled", False)):
        tree = flags(*(word.format(f"--model.config.{name}") for word in words))
        found = tree.model.config.ema.enabled if default else tree.model.config.lora_enabled
        assert found is value
    assert flags("--no-model.config.ema.enabled").model.config.ema.enabled is False


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_a_class_its_fields_and_other_flags_come_in_any_order(order: tuple[int, ...], t: ModuleType) -> None:
    """There: all that follows a chosen class belongs to it, and nothing of it may come before."""
    parts = [["--scheduler", "Cosine"], ["--scheduler.power", "3"], ["--trainer.max_iter", "30"]]
    tree = flags(*(word for index in order for word in parts[index]))
    assert (type(tree.scheduler), tree.scheduler.power, tree.trainer.max_iter) == (t.Cosine.Config, 3.0, 30)


def test_fields_of_the_recipes_own_class_need_no_class() -> None:
    """There: rejected unless the class is named first."""
    assert flags("--scheduler.power", "3").scheduler.power == 3.0


def test_the_model_is_reached_from_the_command_line() -> None:
    """There: the whole model tree is hidden from it."""
    assert flags("--model.config.lora_rank", "3").model.config.lora_rank == 3


def test_a_list_of_names_is_written_as_words_or_as_a_literal_and_a_comma_is_text() -> None:
    """There: ``model,loss`` needs a rule of its own; here a comma inside a name never splits it by surprise."""
    assert flags("--optimizer.keys_to_select", "model", "loss").optimizer.keys_to_select == ["model", "loss"]
    assert flags("--optimizer.keys_to_select", "[model,loss]").optimizer.keys_to_select == ["model", "loss"]
    assert flags("--optimizer.keys_to_select", "model,loss").optimizer.keys_to_select == ["model,loss"]
