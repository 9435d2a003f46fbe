"""The tables of keys that need no code: known keys, none twice, valid columns, and settings that exist."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
from key_rules import keys_without_rule

from worldsmith import dialects
from worldsmith.config.declare.configurable import Config, field_hints
from worldsmith.config.tree.paths import parse_path
from worldsmith.dialects.cosmos_rl.names import leaf_keys
from worldsmith.dialects.cosmos_rl.spec_formats import MODULES, form_of
from worldsmith.dialects.sat.keys import KEYS
from worldsmith.dialects.translation import (
    RULE_FILE,
    NoEffect,
    SpecTranslation,
    read_key_rules,
    translate,
    without_effect,
)

FILES = sorted(Path(dialects.__file__).parent.glob(f"*/{RULE_FILE}"))
COLUMNS = {"outcome", "under", "keys", "reason", "fix", "accepted", "accepts_default", "outside"}
SECTIONS = {
    "cosmos_rl": ("train", "lora", "reinforcement_learning", "evaluate", "quantize", "inference", "any_result"),
    "sat": ("model", "training", "sampling"),
}


def read_table(dialect: str) -> Any:
    return tomllib.loads(next(file for file in FILES if file.parent.name == dialect).read_text())


def test_every_table_is_tested() -> None:
    assert [file.parent.name for file in FILES] == sorted(SECTIONS)


@pytest.mark.parametrize("dialect", SECTIONS)
def test_a_table_has_valid_outcomes_and_columns(dialect: str) -> None:
    table = read_table(dialect)
    assert table.keys() == {"renamed", "without_effect"}
    assert {*table["renamed"], *table["without_effect"]} == {*SECTIONS[dialect]}
    for groups in table["without_effect"].values():
        for group in groups:
            assert COLUMNS >= group.keys() >= {"outcome", "keys", "reason"}, group
            assert group["outcome"] in get_args(NoEffect), group
            assert ("fix" in group) == (group["outcome"] == "refused"), group
            if group["outcome"] in ("unneeded", "dead"):
                assert not group.keys() & {"accepted", "accepts_default"}, group
            assert group.get("outside") in (None, True), group


@pytest.mark.parametrize("action", [action for action in MODULES if action != "gaps"])
def test_every_key_of_a_spec_table_is_a_field_or_outside(action: str) -> None:
    shared = ("lora", "reinforcement_learning") if action == "train" else ("any_result",)
    rules = read_key_rules("cosmos_rl", action, *shared)
    assert max(Counter(key for rule in rules for key in rule.keys).values()) == 1
    leaves = leaf_keys(form_of(action).spec)
    known = {key for leaf in leaves for key in (leaf, leaf.rpartition(".")[0])}
    assert [rule.keys for rule in rules if (rule.keys[0] in known) is rule.outside] == []
    assert keys_without_rule(form_of(action), [rule.keys[0] for rule in rules]) == []


def test_every_key_of_the_sat_table_is_known() -> None:
    for sections in (("model", "training"), ("model", "sampling")):
        keys = [key for rule in read_key_rules("sat", *sections) for key in rule.keys]
        assert max(Counter(keys).values()) == 1
        assert [key for key in keys if key not in KEYS] == []


def test_an_unknown_outcome_and_an_unknown_column_are_errors() -> None:
    with pytest.raises(ValueError, match="expected one of approximated, unneeded, refused, dead, found 'ok'"):
        without_effect("args.x", "ok", "")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="why"):
        without_effect("args.x", "dead", reason="", why="")  # type: ignore[call-arg]


class Source:
    """A spec with two sizes, of which the first is stated."""

    source, outside, open, keys = "spec", {"old": 1}, {}, ("a", "b")

    def __init__(self, value: Any, **columns: Any) -> None:
        rule = without_effect("a", "refused", "no sizes here", "~{key}", **columns)
        self.rules = (rule, without_effect("old", "dead", "nothing reads it", outside=True))
        self.problems: list[Any] = []
        self.value = value

    def get(self, key: str) -> Any:
        return self.value

    def default(self, key: str) -> Any:
        return 0

    def is_stated(self, key: str) -> bool:
        return True

    def is_broken(self, key: str) -> bool:
        return False

    def place(self, key: str) -> Any:
        return None


@pytest.mark.parametrize(
    ("value", "columns", "fix"),
    [
        (0, {}, None),
        (False, {}, "~a"),  # the type counts too
        (0, {"accepts_default": False}, "~a"),
        (1, {"accepted": [1]}, None),
        (0, {"accepted": [1]}, None),
        (2, {"accepted": [1]}, "~a"),
    ],
)
def test_only_the_default_and_accepted_values_are_kept(value: Any, columns: dict[str, Any], fix: str | None) -> None:
    found: SpecTranslation = translate(Source(value, **columns))
    assert [problem.hint for problem in found.problems] == ([fix] if fix else [])
    assert {line.key: line.outcome for line in found.lines} == {"a": "refused" if fix else "kept", "old": "dead"}


@pytest.mark.parametrize("dialect", SECTIONS)
def test_renamed_keys_lead_to_settings_of_the_recipe(dialect: str) -> None:
    from worldsmith.config.dialects import shipped_dialects
    from worldsmith.config.recipes.registry import get_recipe

    tree: Any = get_recipe(next(found.recipe for found in shipped_dialects() if found.name == dialect))
    sections = {"cosmos_rl": ("train",), "sat": ("model", "training")}[dialect]
    for to in (to for section in sections for to in read_table(dialect)["renamed"][section].values()):
        node = tree
        for part in parse_path(to)[:-1]:
            node = node[part] if isinstance(node, dict) else getattr(node, str(part))
        assert isinstance(node, Config)
        assert str(parse_path(to)[-1]) in field_hints(type(node)), to
