"""Marks for tuning: what they refuse, what the JSON Schema says, and where they lie in a tree."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

import pytest

from worldsmith.config import Config
from worldsmith.config.declare.ranges import Count, Factor, Range, annotated_hints
from worldsmith.config.declare.search import Popular, Search, marks_schema, search_space
from worldsmith.config.declare.value_types import describe_hint

LR = Search(low=1e-6, high=1e-3, log=True, on=True)


class Adapter(Config):
    enabled: bool = False
    rank: Annotated[Count, Search(low=4, high=64, power_of_two=True, when="enabled=true"), Popular()] = 16
    alpha: Annotated[Count, Search(choices=(1, 2, 4), ratio_of="rank")] = 32


class Tree(Config):
    lr: Annotated[
        Factor,
        Search(low=1e-5, high=1e-3, log=True, when="adapter.enabled=true"),
        Search(low=1e-7, high=1e-5, log=True),
    ] = 1e-4
    fps: Annotated[float, Range(gt=0), LR] | None = None
    kind: Annotated[str, Search(choices=("a", "b"), weights=(0.1, 0.9), when="fps=null")] = "a"
    plain: int = 1
    adapter: Adapter = field(default_factory=Adapter)
    more: dict[str, Adapter] = field(default_factory=dict)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"low": 1.0},
        {"low": 2.0, "high": 1.0},
        {"low": 1.0, "high": 2.0, "choices": (1,)},
        {"high": 2.0, "choices": (1,)},
        {"low": 0.0, "high": 1.0, "log": True},
        {"low": 3, "high": 8, "power_of_two": True},
        {"choices": (1, 2), "log": True},
        {"choices": (1, 2), "weights": (1.0,)},
        {"choices": (1, 2), "weights": (0.0, 0.0)},
        {"choices": (1, 2), "weights": (-1.0, 2.0)},
        {"choices": (1, 2), "when": "rank"},
    ],
)
def test_a_mark_that_says_nothing_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Search"):
        Search(**said)


def test_a_mark_limits_nothing_and_is_not_in_the_words_of_a_type() -> None:
    Tree(lr=5.0).check()
    with pytest.raises(ValueError, match="lr must be finite and at least 0"):
        Tree(lr=-1.0).check()
    assert describe_hint(annotated_hints(Adapter)["rank"]) == "an integer, at least 1"


def test_marks_as_keywords_of_the_schema() -> None:
    hints = annotated_hints(Adapter)
    assert marks_schema(hints["rank"]) == {
        "x-automl": {"enabled": False, "scale": "power_of_two", "minimum": 4, "maximum": 64, "cond": "enabled=true"},
        "x-depends-on": ["enabled"],
        "x-popular": True,
    }
    assert marks_schema(hints["alpha"]) == {
        "x-automl": {"enabled": False, "scale": "choice", "choices": [1, 2, 4], "cond": "times rank"},
        "x-depends-on": ["rank"],
    }
    several = marks_schema(annotated_hints(Tree)["lr"])["x-automl"]
    assert [case["maximum"] for case in several["cases"]] == [1e-3, 1e-5]
    assert several["maximum"] == 1e-3
    assert marks_schema(annotated_hints(Tree)["fps"])["x-automl"]["enabled"]
    assert marks_schema(annotated_hints(Tree)["plain"]) == {}


def test_the_space_of_a_tree_names_paths_from_the_root() -> None:
    tree = Tree(more={"one": Adapter(enabled=True)})
    space = {searched.path: searched for searched in search_space(tree)}
    assert list(space) == ["lr", "fps", "kind", "adapter.rank", "adapter.alpha", "more.one.rank", "more.one.alpha"]
    assert space["adapter.alpha"].marks[0].ratio_of == "adapter.rank"
    assert space["more.one.rank"].marks[0].when == "more.one.enabled=true"
    assert space["more.one.rank"].marks[0].candidates() == [4, 8, 16, 32, 64]


def test_of_several_marks_that_counts_whose_condition_holds() -> None:
    tree = Tree()
    space = {searched.path: searched for searched in search_space(tree)}
    assert space["adapter.rank"].mark(tree) is None
    assert space["lr"].mark(tree) == Search(low=1e-7, high=1e-5, log=True)
    assert space["kind"].mark(tree) is not None
    tree.adapter.enabled = True
    tree.fps = 2.0
    assert space["adapter.rank"].mark(tree) is not None
    assert space["lr"].mark(tree) == space["lr"].marks[0]
    assert space["kind"].mark(tree) is None
