"""Keys that recipes and packages add to the recipe TOML, and the advice on those that nobody has added."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from worldsmith.config import ConfigError, toml_keys
from worldsmith.config.declare.configurable import field_names
from worldsmith.config.load import load
from worldsmith.config.toml import toml_schema
from worldsmith.config.toml.toml_schema import remap, toml_fields

HEAD = '[job]\nexperiment = "small"\n'


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str, head: str = HEAD) -> str:
        path = tmp_path / "run.toml"
        path.write_text(head + text)
        return str(path)

    return write


def test_one_line_adds_a_key_with_the_type_doc_and_default_of_its_field(t: ModuleType, file: Any) -> None:
    with pytest.raises(ConfigError, match=r"\[scheduler\] has no key 'power'"):
        load(file("[scheduler]\npower = 2\n"))
    toml_keys("scheduler", t.Cosine.Config, "power")
    toml_keys("model", t.Ema.Config, "rate", at="model.config.ema", only="vfm")
    assert load(file("[scheduler]\npower = 2\n[model]\nrate = 0.3\n")).tree.scheduler.power == 2.0
    assert load(file("[model]\nrate = 0.3\n")).tree.model.config.ema.rate == 0.3
    assert load("small", ["model.rate=0.3"]).tree.model.config.ema.rate == 0.3
    entry = next(entry for entry in toml_fields() if entry.path == ("model", "rate"))
    assert (entry.type, entry.default, entry.doc) == (float, 0.1, "Its width,\nas a share.")
    with pytest.raises(ConfigError, match=r"run.toml:4:9: scheduler.power: expected a number, found 'x'"):
        load(file('[scheduler]\npower = "x"\n'))
    vlm = '[job]\ntask = "vlm"\nexperiment = "small_vlm"\n'
    assert "model.rate has no effect for task 'vlm'" in load(file("[model]\nrate = 0.3\n", vlm)).warnings[0]


def test_all_fields_of_a_class_are_keys_except_those_that_are_excluded(
    t: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(toml_schema.EXCLUDED, ("job", "more", "enabled"), "for a test")
    toml_keys("job.more", t.Ema.Config, at="model.config.ema")
    added = [entry.path[-1] for entry in toml_fields() if entry.path[:2] == ("job", "more")]
    assert added == [name for name in field_names(t.Ema.Config) if name != "enabled"]


def test_keys_stand_with_their_section(t: ModuleType) -> None:
    toml_keys("job.more", t.Cosine.Config, "power", at="scheduler")
    toml_keys("optimizer", t.Ema.Config, "rate", at="model.config.ema")
    paths = [entry.path for entry in toml_fields()]
    roots = [path[0] for path in paths]
    assert [root for n, root in enumerate(roots) if n == 0 or roots[n - 1] != root] == list(dict.fromkeys(roots))
    assert paths[-1] == ("custom",)


def test_several_families_may_add_one_key_but_only_in_the_same_place(t: ModuleType, file: Any) -> None:
    toml_keys("model", t.Reasoner.Config, "lora_target_modules", at="model.config")
    with pytest.raises(ValueError, match=r"already has a key model.lora_target_modules"):
        toml_keys("model", t.Reasoner.Config, "lora_target_modules", at="model.config", only="vlm")
    with pytest.raises(ValueError, match=r"already has a key scheduler.f_max"):
        toml_keys("scheduler", t.Linear.Config, "f_max")
    with pytest.raises(TypeError, match="did you mean 'power'"):
        toml_keys("scheduler", t.Cosine.Config, "powr")
    assert remap(("model", "lora_target_modules"), "vlm") == ("model", "config", "lora_target_modules")
    assert ("scheduler", "powr") not in toml_schema._ADDED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[trainer]\nseed = 7\n", "-- trainer.seed=7"),
        ("[model.config.ema]\nrate = 0.2\n", "-- model.config.ema.rate=0.2"),
        ("[scheduler]\npower = 2.0\n", "-- scheduler.power=2.0"),
        ('[data_setting]\nmax_tokens = 5\n[optimizer]\nlr = "x"\n', "-- data_setting.max_tokens=5"),
    ],
)
def test_a_key_of_the_tree_that_the_file_cannot_say_gets_the_word_for_it(file: Any, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file(text))
    assert f"a recipe TOML has no key for this config value; set it with an override: {words}\n" in f"{caught.value}\n"


def test_what_a_file_takes_is_listed_in_the_order_of_files(file: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file("[zzzzzzzz]\nx = 1\n"))
    listed = "job, model, optimizer, scheduler, trainer, checkpoint, dataloader_train, custom"
    (problem,) = caught.value.problems
    assert problem.hint == f"the file accepts: {listed}"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("[optimizer]\nfused = True\n", "write true"),
        ("[optimizer]\nfused = FALSE # no\n", "write false"),
        ("[trainer]\nmax_itr=True\n", "write true"),
        ("[checkpoint]\nload_path = None\n", 'write "???"'),
        ("[optimizer]\nlr = fast\n", None),
    ],
)
def test_values_of_other_languages_are_told_in_tomls_own(file: Any, text: str, meant: str | None) -> None:
    with pytest.raises(ConfigError, match="not valid TOML: Invalid value") as caught:
        load(file(text))
    assert caught.value.problems[0].hint == meant
