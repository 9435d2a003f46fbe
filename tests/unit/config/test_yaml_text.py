"""YAML as people mean it: what a plain word is read as, what is refused, and text that comes back as it was written."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsmith.config import ConfigError, text_file
from worldsmith.config.tree.plain import to_dict, to_yaml
from worldsmith.config.tree.read_config import from_dict, from_yaml
from worldsmith.config.yaml import yaml_text
from worldsmith.config.yaml.yaml_text import advice_on, dump_yaml, read_yaml

QUICK = settings(max_examples=80)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E+5", 1e5),
        ("3.", 3.0),
        ("-.5", -0.5),
        (".inf", float("inf")),
        ("-.INF", float("-inf")),
        ("+1", 1),
        ("-0", 0),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("", {}),
    ],
)
def test_plain_words_that_are_values(text: str, value: Any) -> None:
    found = read_yaml(text, "f").data
    assert found == value
    assert type(found) is type(value)


DISPUTED = """
y n yes No on OFF 010 08 0o17 0x1F -0x1 0b1 1_000 1__0 1:30 2024-01-01 12:30:45.6 2024-01-01T10:00:00Z
1e 0.1.2 1,0,0 = nan inf None 123abc
"""


@pytest.mark.parametrize("text", DISPUTED.split())
def test_words_that_readers_disagree_on_are_text_and_are_written_in_quotes(text: str) -> None:
    """Our reader takes them for text, and what we write is text for a YAML 1.1 reader too."""
    assert read_yaml(f"a: {text}", "f").data == {"a": text}
    assert yaml.safe_load(dump_yaml({"a": text})) == {"a": text}


def test_advice_for_truth_words_and_odd_numbers() -> None:
    assert "true or false" in (advice_on("yes") or "")
    assert "decimal" in (advice_on("0x10") or "")
    assert advice_on("text") is None
    assert advice_on(3) is None


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("a: !!python/object/apply:os.system [id]", 1, 4, "tag !!python"),
        ("a: 1\nb: !!int 3", 2, 4, "tag !!int"),
        ("a: !!bool x", 1, 4, "tag !!bool"),
        ("a: ! 3", 1, 4, "tag !"),
        ("!!str a: 1", 1, 1, "plain text"),
        ("a: 1\na: 2", 2, 1, "occurs twice"),
        ("b: {<<: {a: 1}}", 1, 5, "merge keys"),
        ("a: 1\n---\nb: 2", 2, 1, "another document"),
        ("a: [1, 2", 1, 9, "not valid YAML"),
        ("a: *x", 1, 4, "undefined alias"),
        ("a: 1\n\tb: 2", 2, 1, "cannot start any token"),
        ('a: "\\ud800"', 1, 4, "surrogate"),
        ('a: "\\UFFFFFFFF"', 1, 7, "not valid YAML"),
        ("a: 1\nb: x\x00", 2, 5, "U+0000"),
        ("a: 1e999", 1, 4, "too large"),
        (f"a: {'9' * 5000}", 1, 4, "too long"),
        ("[a]: 1", 1, 1, "plain text"),
        ("&a [*a]", 1, 1, "nested more than 64"),
        ("[" * 500, 1, 65, "nested more than 64"),
    ],
)
def test_what_is_refused_has_its_place(text: str, line: int, column: int, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_yaml(text, "f.yaml")
    problem = caught.value.problems[0]
    assert words in problem.render()
    assert (problem.file, problem.line, problem.column) == ("f.yaml", line, column)


def test_a_text_with_too_many_values_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_text, "MAX_VALUES", 100)
    monkeypatch.setattr(text_file, "MAX_VALUES", 100)
    assert len(read_yaml("[" + "1," * 90 + "]", "f").data) == 90
    with pytest.raises(ConfigError, match="more than 100 values"):
        read_yaml("[" + "1," * 110 + "]", "f")
    with pytest.raises(ConfigError, match="more than 100 values"):
        read_yaml("a: &a [1,1,1,1,1,1,1,1,1,1]\nb: [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]", "f")


def test_anchors_may_repeat_a_value() -> None:
    assert read_yaml("a: &x [1, 2]\nb: *x", "f").data == {"a": [1, 2], "b": [1, 2]}


def test_every_key_and_value_has_its_place() -> None:
    spans = read_yaml("a:\n  b: [1, 'x']\n  c:\nd: {e: 2.5}\n", "f").spans
    places = {
        path: (span.key.line, span.key.column, span.value.line, span.value.column) for path, span in spans.items()
    }
    assert places == {
        ("a",): (1, 1, 1, 1),  # a block stands where its key stands
        ("a", "b"): (2, 3, 2, 6),
        ("a", "b", 0): (2, 7, 2, 7),
        ("a", "b", 1): (2, 10, 2, 10),
        ("a", "c"): (3, 3, 3, 3),  # nothing is written: the key
        ("d",): (4, 1, 4, 4),
        ("d", "e"): (4, 5, 4, 8),
    }
    assert spans["a", "b", 1].value.source == "  b: [1, 'x']"
    assert spans["a", "b", 1].value.length == 3


WORDS = st.sampled_from(
    ["yes", "1", "1.5", "1e-05", "null", "~", "true", "<<", "=", "", " ", "a: b", "- x", "#", "0x1"]
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | WORDS | st.text("\n\t ab'\"\\:#\x85\u2028é")
NUMBERS = st.floats(allow_nan=False) | st.sampled_from([1e-05, float("inf"), float("-inf"), 1e300, -0.0])
SCALARS = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | NUMBERS | TEXT
DATA = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))


@given(st.dictionaries(TEXT, DATA, max_size=4))
@QUICK
def test_any_plain_data_survives_yaml_and_json_text(data: dict[str, Any]) -> None:
    assert repr(read_yaml(dump_yaml(data), "f").data) == repr(data)  # repr: 1 is not True is not 1.0, 0.0 is not -0.0
    assert json.loads(json.dumps(data)) == data


@given(st.lists(TEXT, max_size=4), st.dictionaries(TEXT, NUMBERS, max_size=3), TEXT, st.dictionaries(TEXT, DATA))
@QUICK
def test_any_tree_survives_yaml_and_json_text(
    t: ModuleType, texts: list[str], table: dict[str, float], name: str, custom: dict[str, Any]
) -> None:
    tree = t.Trainer.Config(
        optimizer=t.AdamW.Config(keys_to_select=texts, lr_multipliers=table),
        checkpoint=t.Checkpointer.Config(load_path=name),
        custom=custom,
    )
    assert from_yaml(to_yaml(tree, custom=True)) == tree
    assert from_dict(json.loads(json.dumps(to_dict(tree, custom=True)))) == tree


def test_who_changes_what_was_read_changes_it_for_nobody_else() -> None:
    """A text that is read again is not parsed again."""
    text = "a: {b: [1, 2]}\n"
    first = read_yaml(text, "f.yaml")
    first.data["a"]["b"].append(3)
    first.spans.clear()
    again = read_yaml(text, "f.yaml")
    assert again.data == {"a": {"b": [1, 2]}}
    assert again.spans[("a", "b")].key.line == 1
    assert read_yaml(text, "other.yaml").spans[("a", "b")].key.file == "other.yaml"
