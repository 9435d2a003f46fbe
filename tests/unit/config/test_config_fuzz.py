"""Damaged input ends in a valid tree or a ConfigError, never in another exception."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from worldsmith.config import ConfigError, get_recipe
from worldsmith.config.declare.configurable import all_paths
from worldsmith.config.load import load
from worldsmith.config.tree.paths import format_path
from worldsmith.config.tree.plain import to_dict, to_yaml
from worldsmith.config.tree.read_config import from_dict, from_yaml

GOOD = """[job]
experiment = "small"
name = "${now:%Y}_${trainer.max_iter}"
[model.ema]
rate = 0.2
[optimizer]
lr = 1e-4
betas = [0.9, 0.95]
keys_to_select = ["a", 'b']
[optimizer.lr_multipliers]
"a.b" = 5.0
[scheduler]
cycle_lengths = [10]
[trainer.callbacks.grad_clip]
clip_norm = 1.0
[checkpoint]
load_path = "${oc.env:HOME,x}"
[custom]
x = [{ y = 1 }]
"""
PIECES = [*"[]{}\"'=,.#$\\\n\t é~+:-0123456789", "${", "}", "???", "null", "true", "inf", "nan", '"""', "[[", "1e999"]
PIECES += [
    "${optimizer.lr}",
    "${oc.env:",
    "${asset:tiny_vae}",
    "type",
    "custom",
    "\x00",
    "\u2028",
    "1979-05-27",
    "${now:%}",
]
EDIT = st.tuples(st.integers(0, 10**6), st.integers(0, 6), st.sampled_from(PIECES) | st.text(max_size=4))
WORDS = ["optimizer.lr=1e-4", "+optimizer.lr_multipliers.x=2", "~optimizer.lr_multipliers.head", "job.name='a b'"]
WORDS += ["optimizer.betas=[0.1,0.2]", "scheduler={f_min: [0.5]}", "model.ema.rate=${optimizer.lr}", "experiment=small"]
FUZZ = settings(
    max_examples=int(os.environ.get("WORLDSMITH_FUZZ_EXAMPLES", "50")),
)


def damage(text: str, edits: list[tuple[int, int, str]]) -> str:
    for at, length, piece in edits:
        at %= len(text) + 1
        text = text[:at] + piece + text[at + length :]
    return text


def complain(error: ConfigError) -> None:
    """The report can be made and has something to say."""
    assert error.problems
    assert all(problem.message or problem.expected for problem in error.problems)
    str(error).encode("utf-8")


@given(st.lists(EDIT, max_size=4), st.lists(st.tuples(st.sampled_from(WORDS), st.lists(EDIT, max_size=2)), max_size=3))
@FUZZ
def test_damaged_toml_and_words(
    edits: list[tuple[int, int, str]], words: list[tuple[str, list[tuple[int, int, str]]]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.toml")
        path.write_bytes(damage(GOOD, edits).encode("utf-8", "surrogatepass"))
        try:
            tree = load(str(path), [damage(word, changes) for word, changes in words]).tree
        except ConfigError as error:
            complain(error)
        else:
            assert from_dict(to_dict(tree, custom=True)) == tree


@given(st.lists(EDIT, min_size=1, max_size=5))
@FUZZ
def test_damaged_yaml(edits: list[tuple[int, int, str]]) -> None:
    text = damage(to_yaml(get_recipe("small")), edits)
    try:
        tree = from_yaml(text)
    except ConfigError as error:
        complain(error)
    else:
        assert from_yaml(to_yaml(tree, custom=True)) == tree


PATHS = st.deferred(lambda: st.sampled_from([format_path(path) for path in all_paths(get_recipe("small"))]))
VALUE = st.lists(st.sampled_from([*PIECES, *"[{'", "1", "a: 1", "b"]), min_size=1, max_size=5).map("".join)


@given(st.text(max_size=20), st.lists(st.text(max_size=12), max_size=3))
@FUZZ
def test_any_source(source: str, words: list[str]) -> None:
    try:
        load(source, words)
    except ConfigError as error:
        complain(error)


@given(st.lists(st.builds("{}={}".format, PATHS, VALUE) | st.text(max_size=12), min_size=1, max_size=2))
@FUZZ
def test_any_words(words: list[str]) -> None:
    try:
        loaded = load("small", words)
    except ConfigError as error:
        complain(error)
    else:
        assert from_yaml(to_yaml(loaded.tree, custom=True)) == loaded.tree


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    """A class name of a package that is not trusted is not even imported."""
    trap = tmp_path / "trap_package.py"
    trap.write_text("import os\nos.environ['TRAP'] = '1'\n")
    import sys

    sys.path.insert(0, str(tmp_path))
    try:
        for text in ("type: trap_package.X\n", "scheduler: {type: trap_package.X}\n", "!!python/name:trap_package.X\n"):
            try:
                from_yaml(text)
            except ConfigError:
                continue
            raise AssertionError(text)
    finally:
        sys.path.remove(str(tmp_path))
    assert "TRAP" not in os.environ
    assert "trap_package" not in sys.modules
