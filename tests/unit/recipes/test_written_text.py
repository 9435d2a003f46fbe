"""Text and values of any kind survive being written as TOML, Python, YAML, JSON and override words."""

from __future__ import annotations

import datetime
import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsmith.config import get_recipe
from worldsmith.config.command_line.literals import read_text
from worldsmith.config.load import load
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.difference import find_changes
from worldsmith.config.tree.plain import to_yaml
from worldsmith.config.tree.references import resolve
from worldsmith.config.write.convert_config import PythonWriter, convert
from worldsmith.config.write.values import JSON, PYTHON, TOML, WORD, Syntax, toml_pair, write, write_toml


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and not find_changes(a, b, custom=True)


def read_back(text: str, file: Path, words: list[str] | None = None) -> Any:
    file.write_text(text, encoding="utf-8")
    return load(str(file), words or [], keep_unset=True).raw


HOSTILE = [
    '"',
    "'",
    '"""',
    "'''",
    "\\",
    "\\'\"",
    "\n",
    "\r\n",
    "\r",
    "\x00",
    "\x1f",
    "\x7f",
    "\x85",
    "\u2028",
    "\ufeff",
]
HOSTILE += ["#", "[a]", "${x}", "???", "\U0001f600", "a\tb", "null", "1e5", "true", "", " ", "\U000e0001", "\ufffe"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(HOSTILE)
NUMBERS = st.integers() | st.floats(allow_nan=False) | st.booleans()
PLAIN = st.recursive(
    TEXT | NUMBERS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
MANY = settings(max_examples=200)


@MANY
@given(st.dictionaries(TEXT, PLAIN, max_size=4))
def test_any_table_survives_toml(table: dict[str, Any]) -> None:
    assert repr(tomllib.loads(write_toml(table))) == repr(tables_last(table))


def tables_last(value: Any) -> Any:
    """TOML writes single values before sub-tables; only dicts directly below dicts are moved."""
    if not isinstance(value, dict):
        return value
    ordered = sorted(value.items(), key=lambda pair: isinstance(pair[1], dict))
    return {key: tables_last(item) for key, item in ordered}


@MANY
@given(TEXT)
def test_any_text_survives_toml_as_key_and_value_and_stays_on_one_line(text: str) -> None:
    line = toml_pair(text, text)
    assert tomllib.loads(line) == {text: text}
    assert len(line.splitlines()) == 1


@MANY
@given(TEXT)
def test_any_text_survives_python(text: str) -> None:
    assert eval(write(text, PYTHON)) == text
    assert write(text, PYTHON).startswith('"')


@MANY
@given(PLAIN)
def test_any_plain_value_survives_python(value: Any) -> None:
    lines = PythonWriter().expression(value)
    assert repr(eval("\n".join(lines))) == repr(eval(write(value, PYTHON))) == repr(value)


@MANY
@given(PLAIN.filter(lambda value: "inf" not in repr(value)))
def test_any_plain_value_survives_json(value: Any) -> None:
    assert repr(json.loads(write(value, JSON))) == repr(value)


@pytest.mark.parametrize(
    ("syntax", "value", "words"),
    [
        (TOML, {"a": [None]}, "TOML cannot express null"),
        (JSON, [float("nan")], "JSON cannot express nan"),
        (JSON, [datetime.date(2026, 1, 2)], "JSON cannot express a date"),
        (JSON, {"\udc00": 1}, r"half of a surrogate pair \(U\+DC00\)"),
        (TOML, "\ud800", r"half of a surrogate pair \(U\+D800\)"),
        (WORD, "a\0b", "cannot contain the NUL character"),
        (PYTHON, {1}, "Python cannot express a set"),
    ],
)
def test_what_a_language_has_no_form_for(syntax: Syntax, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        write(value, syntax)


@MANY
@given(TEXT.filter(lambda text: "\0" not in text), st.dictionaries(TEXT, NUMBERS, max_size=3))
def test_any_text_survives_an_override_word(text: str, table: dict[str, Any]) -> None:
    assert read_text(write(text, WORD), str) == text
    assert "\n" not in write(text, WORD)
    assert shlex.split(shlex.quote(write(text, WORD))) == [write(text, WORD)]
    plain = {key: value for key, value in table.items() if "\0" not in key}
    assert repr(read_text(write(plain, WORD), dict[str, float | int | bool])) == repr(plain)


@settings(max_examples=25)
@given(TEXT.filter(lambda text: "${" not in text and ".." not in text and not text.startswith(("/", "~"))), TEXT)
def test_hostile_names_survive_every_form_of_a_run(tmp_path: Path, text: str, suffix: str) -> None:
    tree = get_recipe("moving_shapes")
    tree.job.group = tree.job.group if "\0" in text else text or tree.job.group
    tree.optimizer.lr_multipliers = {text or "x": 1.0}
    tree.dataloader_train.dataset.caption_suffix = suffix.replace("${", "")
    tree.custom = {text: [suffix, {suffix: text}]}
    first = Loaded(tree, raw=tree, source="test", recipes=lambda: [("moving_shapes", get_recipe("moving_shapes"))])
    for to in ("yaml", "json"):
        assert same(read_back(convert(first, to).text, tmp_path / f"h.{to}"), tree)
    if "\0" in text + suffix:
        return
    converted = convert(first, "toml")
    unsaid = text == "???"
    assert [change.path[-1] for change in converted.rest if change.path[-1] != "caption_suffix"] == ["group"] * unsaid
    assert same(read_back(converted.text, tmp_path / "h.toml", converted.words), tree)


def test_tables_of_a_whole_tree_replace_the_defaults_of_their_fields(tmp_path: Path) -> None:
    def read(*texts: str) -> Any:
        files = [tmp_path / f"{number}.yaml" for number in range(len(texts))]
        for file, text in zip(files, texts):
            file.write_text(text)
        return load([str(file) for file in files], []).tree

    tree = get_recipe("cogvideox_2b_tiny")
    assert tree.dataloader_train.dataset.conditioning_config == {}, "the field's default has three keys"
    del tree.trainer.callbacks["iter_speed"]
    text = to_yaml(tree)
    assert read(text) == resolve(tree)
    speed = "worldsmith.training.callbacks.progress.IterSpeed"
    names = set(read(text, f"trainer: {{callbacks: {{again: {{type: {speed}}}}}}}\n").trainer.callbacks)
    assert names == {*tree.trainer.callbacks, "again"}, "later files are merged"
