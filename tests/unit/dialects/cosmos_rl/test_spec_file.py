"""Nested specs: places, dotted words, keys that are reserved here, and what becomes of each key."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

import pytest
from key_rules import keys_without_rule

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.ranges import Count
from worldsmith.config.errors import ConfigError, Place
from worldsmith.dialects.cosmos_rl.names import leaf_keys
from worldsmith.dialects.cosmos_rl.spec_file import Spec, read_spec
from worldsmith.dialects.translation import (
    SpecForm,
    SpecTranslation,
    computed,
    format_report,
    renamed,
    translate,
    without_effect,
)


class Policy(Config):
    type_: Literal["", "sft"] = ""
    """Kind."""
    sizes: list[int] | None = None
    """Numbers."""
    rates: float | dict[str, float] = 1e-6
    """One, or by name."""


class Extra(Config):
    path: str = ""
    """A file."""


class Custom(Config):
    extra: Extra | None = None
    """Left out by default."""


class Root(Config):
    policy: Policy = field(default_factory=Policy)
    """Section."""
    epochs: Annotated[int, Count.__metadata__[0]] = 1
    """Passes."""
    custom_: Custom = field(default_factory=Custom)
    """Own."""


@computed("policy.rates")
def rates(t: SpecTranslation) -> None:
    assert t.get("policy.rates")
    t.put("optimizer.lr", 1.0, source="policy.rates")
    t.report("policy.rates", "renamed", "optimizer.lr")


FORM = SpecForm(
    "test",
    Root,
    (
        renamed("policy.type", "kind"),
        without_effect("policy.sizes", "refused", "no sizes here", "leave it out"),
        rates,
        renamed("epochs", "steps", lambda n: 10 * n, why="ten steps each"),
        renamed("custom.extra.path", "file"),
        without_effect("policy.old", "dead", "use epochs", outside=True),
        without_effect("rollout", "refused", "no rollouts here", "remove it", outside=True),
    ),
    aliases={"num_epochs": "epochs"},
    wrapper="test",
    free=("custom",),
)


def read(tmp_path: Path, text: str, *words: str, suffix: str = "yaml") -> Spec:
    file = tmp_path / f"spec.{suffix}"
    file.write_text(text)
    return read_spec(FORM, str(file), words)


TEXTS = {
    "yaml": "policy:\n  type: sft\n  rates: {a.b: 2}\nepochs: 3\ncustom:\n  extra:\n    path: x\n",
    "toml": 'epochs = 3\n[policy]\ntype = "sft"\nrates = {"a.b" = 2}\n[custom.extra]\npath = "x"\n',
    "json": '{"policy": {"type": "sft", "rates": {"a.b": 2}},\n "epochs": 3, "custom": {"extra": {"path": "x"}}}\n',
}


@pytest.mark.parametrize("suffix", TEXTS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_every_format_gives_the_same_values_with_their_lines(tmp_path: Path, suffix: str, wrapped: bool) -> None:
    text = TEXTS[suffix]
    if wrapped and suffix != "json":
        return
    spec = read(tmp_path, f'{{"test": {text}}}' if wrapped else text, suffix=suffix)
    assert not spec.problems
    assert (spec.get("policy.type"), spec.get("epochs"), spec.get("custom.extra.path")) == ("sft", 3, "x")
    assert spec.get("policy.rates") == {"a.b": 2.0}
    line = next(n for n, found in enumerate(text.split("\n"), start=1) if '"x"' in found or "path: x" in found)
    assert spec.place("custom.extra.path").line == line
    assert spec.place("policy.sizes").file.endswith(f"spec.{suffix} (omitted: policy.sizes)")


def test_dotted_words_walk_to_the_leaf(tmp_path: Path) -> None:
    spec = read(
        tmp_path,
        TEXTS["yaml"],
        *("policy.rates=1e-5", "+custom.extra.path=y", "policy.type=sft", "num_epochs=7", "policy.sizes=[1, 2]"),
    )
    assert not spec.problems
    assert (spec.get("policy.rates"), spec.get("custom.extra.path"), spec.get("epochs")) == (1e-5, "y", 7)
    assert spec.get("policy.sizes") == [1, 2]
    assert spec.place("policy.rates").file == "override"
    subtree = read(tmp_path, TEXTS["yaml"], "policy={rates: 2}", "~custom.extra")
    assert (subtree.get("policy.type"), subtree.get("policy.rates"), subtree.get("custom.extra")) == ("", 2.0, None)


MISTAKES = [
    ("policy: {typ: sft}", "policy.typ", "did you mean 'policy.type'?"),
    ("policy.type: sft", '"policy.type"', "write nested tables, policy -> type"),
    ("custom: {extr: {path: x}}", "custom.extr", "did you mean 'custom.extra'?"),
    ("policy: {type: [1]}", "policy.type", None),
    ("epochs: 0", "", None),
    ("epochs: ${x}", "epochs", None),
    ("epochs: 2\nnum_epochs: 3", "num_epochs", "keep one of the two"),
]


@pytest.mark.parametrize(("text", "path", "hint"), MISTAKES)
def test_mistakes_are_told_in_keys_with_their_place(tmp_path: Path, text: str, path: str, hint: str | None) -> None:
    (problem,) = read(tmp_path, text).problems
    assert problem.path == path
    assert problem.line is not None
    assert hint is None or hint in (problem.hint or "")
    assert "_ " not in problem.render()


def test_all_mistakes_are_in_one_report_and_rows_about_wrong_values_say_nothing(tmp_path: Path) -> None:
    spec = read(tmp_path, "policy: {rates: x, sizes: [1]}\nepochs: 0\nrollout: {n: 1}\n", "~policy.none")
    translation = translate(spec)
    assert sorted(problem.path for problem in translation.problems) == [
        "",
        "policy.none",
        "policy.rates",
        "policy.sizes",
        "rollout",
    ]
    assert "optimizer" not in translation.data


def test_rows_make_our_settings_and_a_report_of_every_key(tmp_path: Path) -> None:
    translation = translate(read(tmp_path, "policy: {old: 1}\nepochs: 3\ncustom: {mine: 4}\n"))
    assert translation.data == {"kind": "", "optimizer": {"lr": 1.0}, "steps": 30}
    assert {line.key: line.outcome for line in translation.lines if line.stated} == {
        "epochs": "approximated",
        "policy.old": "dead",
        "custom.mine": "unneeded",
    }
    text = format_report(translation)
    assert "3 keys: 1 approximated, 1 dead, 1 unneeded" in text
    assert 'renamed       policy.type   kind = ""' in text.partition("omitted")[2]
    assert [warning.partition(": ")[2] for warning in translation.get_warnings()] == [
        "epochs is approximated: steps = 30; ten steps each",
        "policy.old is dead: use epochs",
    ]


class Settings(Config):
    kind: str = "none"
    """Kind."""
    steps: Count = 5
    """Steps."""
    optimizer: dict[str, float] = field(default_factory=dict)
    """Rates."""


def test_our_settings_go_on_top_of_others_with_their_places(tmp_path: Path) -> None:
    places: dict[tuple[str | int, ...], Place] = {}
    translation = translate(read(tmp_path, "policy: {type: sft}\nepochs: 3\n"))
    settings = translation.apply_to(Settings(), places)
    assert settings == Settings(kind="sft", steps=30, optimizer={"lr": 1.0})
    assert (places[("kind",)].line, places[("steps",)].line) == (1, 2)
    translation.data["kinds"] = 1
    assert translation.apply_to(Settings(), places).kind == "sft"
    assert [problem.path for problem in translation.problems] == ["kinds"]


def test_every_key_of_the_class_has_a_row() -> None:
    assert keys_without_rule(FORM, leaf_keys(Root)) == []


def test_a_file_that_is_no_spec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a spec must be a"):
        read(tmp_path, "", suffix="txt")
    with pytest.raises(ConfigError, match="sections with their keys"):
        read(tmp_path, "[1, 2]", suffix="json")
