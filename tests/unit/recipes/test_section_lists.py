"""A list of sections, `model.config.converters`, through every front door and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worldsmith.config import ConfigError
from worldsmith.config.command_line.typed_flags import read_flags, split_flags
from worldsmith.config.load import load, read_draft
from worldsmith.config.tree.config_draft import Loaded, finish
from worldsmith.config.tree.paths import parse_path
from worldsmith.config.tree.plain import to_yaml
from worldsmith.config.write.convert_config import convert
from worldsmith.models.converters import Float8

LIST = "model.config.converters"
TAG = "worldsmith.models.converters.float8.Float8"
RECIPE = "vision_sft_edge"
WANTED = [Float8.Config(recipe="tensorwise", leave_out=["mlp"]), Float8.Config()]
TOML = f"""
[job]
experiment = "{RECIPE}"
[[model.converters]]
type = "{TAG}"
recipe = "tensorwise"
leave_out = ["mlp"]
[[model.converters]]
type = "worldsmith.models.converters.Float8"
"""


def by_flags(*words: str) -> Loaded:
    draft, overrides = read_draft(RECIPE, [])
    flags = read_flags(draft.tree, split_flags(words, ())[1], draft.problems)
    return finish(draft, [*flags, *overrides], keep_unset=True)


def by_words(*words: str) -> Loaded:
    return load(RECIPE, words, keep_unset=True)


def converters(loaded: Loaded) -> Any:
    return loaded.tree.model.config.converters


def test_every_door_leads_to_the_same_list(tmp_path: Path) -> None:
    literal = "[{type: Float8, recipe: tensorwise, leave_out: [mlp]}, Float8]"
    fields = ("--model.config.converters.0.recipe", "tensorwise", "--model.config.converters.0.leave_out", "mlp")
    (tmp_path / "a.toml").write_text(TOML)
    (tmp_path / "a.yaml").write_text(to_yaml(by_words(f"{LIST}={literal}").tree))
    found = [
        by_words(f"{LIST}={literal}"),
        by_words(f"{LIST}=[Float8, {{type: {TAG}}}]", f"{LIST}.0.recipe=tensorwise", f"{LIST}[0].leave_out=[mlp]"),
        by_flags(f"--{LIST}", literal),
        by_flags(*fields, f"--{LIST}", "Float8", TAG),
        *(load(str(tmp_path / f"a.{form}"), keep_unset=True) for form in ("toml", "yaml")),
    ]
    for loaded in found:
        assert converters(loaded) == WANTED
    written = convert(found[0], "toml")
    assert not written.rest
    (tmp_path / "b.toml").write_text(written.text)
    assert converters(load(str(tmp_path / "b.toml"), keep_unset=True)) == WANTED
    assert converters(by_words(f"{LIST}=[]")) == []


def test_each_field_of_an_item_has_its_origin(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TOML)
    names = (f"{LIST}[0]", f"{LIST}[0].recipe", f"{LIST}[1].recipe")
    of_file = load(str(tmp_path / "a.toml"), keep_unset=True).provenance
    assert [str(of_file[parse_path(name)]) for name in names] == ["a.toml:5", "a.toml:6", "default"]
    of_flags = by_flags(f"--{LIST}", "Float8", "Float8", f"--{LIST}.0.recipe", "rowwise").provenance
    first, second, third = (str(of_flags[parse_path(name)]) for name in names)
    assert first == f"flag --{LIST} Float8 Float8"
    assert second == f"flag --{LIST}.0.recipe rowwise"
    assert third == "default"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [f"--{LIST}", "Float9"],
            r"converters\[0\]: no class for this section is named 'Float9'.*did you mean 'Float8'",
        ),
        ([f"--{LIST}", "Float8", f"--{LIST}.1.recipe", "x"], rf"unknown flag --{LIST}.1.recipe"),
        ([f"--{LIST}", "[{recipe: rowwise}]"], r"converters\[0\].type: this section must name its class"),
        ([f"--{LIST}", "my_package.Mine"], "outside the trusted packages.*add --trust my_package"),
        ([f"--{LIST}", "worldsmith.training.optimizer.AdamW"], r"is not allowed here.*converter\.Converter"),
    ],
)
def test_mistakes_name_the_item(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        by_flags(*words)


def test_a_file_that_holds_no_list_is_told_how_to_write_one(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f'[job]\nexperiment = "{RECIPE}"\n[model.converters]\ntype = "{TAG}"\n')
    with pytest.raises(ConfigError, match=r"a list of sections, each \[\[model.converters\]\], found a table"):
        load(str(tmp_path / "a.toml"), keep_unset=True)
