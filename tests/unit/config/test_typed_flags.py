"""Typed flags: every spelling, every type, classes chosen in any order, and mistakes in one report."""

from __future__ import annotations

import random
import sys
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from worldsmith.config import ConfigError, Configurable, Problem, get_recipe
from worldsmith.config.command_line.class_choice import class_choices
from worldsmith.config.command_line.overrides import apply_overrides, parse_overrides
from worldsmith.config.command_line.typed_flags import (
    TypedFlag,
    read_flags,
    split_flags,
    take_recipe_flags,
    take_source,
)
from worldsmith.config.declare import class_tags
from worldsmith.config.declare.configurable import all_paths
from worldsmith.config.load import read_draft
from worldsmith.config.tree.config_draft import finish
from worldsmith.config.tree.paths import format_path
from worldsmith.config.tree.plain import to_yaml
from worldsmith.config.tree.read_config import change_class

OWN = ("--dryrun", "--sft-toml", "-h", "--help")


def load(*words: str, source: str = "small", tail: tuple[str, ...] = ()) -> Any:
    """The resolved tree of a source with typed flags, and override words after them."""
    _, flags = split_flags(words, OWN)
    choosing, flags = take_recipe_flags(flags)
    draft, overrides = read_draft(source, [*choosing, *parse_overrides(tail, [])])
    return finish(draft, [*read_flags(draft.tree, flags, draft.problems, own=OWN), *overrides]).tree


def report(*words: str, source: str = "small") -> str:
    with pytest.raises(ConfigError) as caught:
        load(*words, source=source)
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (["--optimizer.lr", "1e-4"], "optimizer.lr", 1e-4),
        (["--optimizer.lr=1e-4"], "optimizer.lr", 1e-4),
        (["--optimizer.weight-decay", "1"], "optimizer.weight_decay", 1.0),
        (["--optimizer.weight_decay", "-0.5"], "optimizer.weight_decay", -0.5),
        (["--data-setting.max-tokens", "7"], "data_setting.max_tokens", 7),
        (["--model.config.lora-enabled"], "model.config.lora_enabled", True),
        (["--model.config.ema.enabled", "false"], "model.config.ema.enabled", False),
        (["--model.config.ema.enabled=False"], "model.config.ema.enabled", False),
        (["--no-model.config.ema.enabled"], "model.config.ema.enabled", False),
        (["--model.config.ema.no-enabled"], "model.config.ema.enabled", False),
        (["--model.config.precision", "float32"], "model.config.precision", "float32"),
        (["--optimizer.betas", "0.9", "0.95"], "optimizer.betas", [0.9, 0.95]),
        (["--optimizer.betas", "[0.9, 0.95]"], "optimizer.betas", [0.9, 0.95]),
        (["--optimizer.keys_to_select", "a,b", "it's", "7"], "optimizer.keys_to_select", ["a,b", "it's", "7"]),
        (["--optimizer.keys_to_select", "[]"], "optimizer.keys_to_select", []),
        (["--optimizer.betas.1", "0.5"], "optimizer.betas", [0.9, 0.5]),
        (["--optimizer.lr_multipliers.moe_gen", "2.0"], "optimizer.lr_multipliers", {"head": 2.0, "moe_gen": 2.0}),
        (["--optimizer.lr_multipliers.head", "3"], "optimizer.lr_multipliers", {"head": 3.0}),
        (["--optimizer.lr_multipliers.a-b.c", "3"], "optimizer.lr_multipliers", {"head": 2.0, "a-b.c": 3.0}),
        (["--optimizer.lr_multipliers", '{"x": 1}'], "optimizer.lr_multipliers", {"x": 1.0}),
        (["--trainer.callbacks.grad-clip.clip-norm", "2"], "trainer.callbacks.grad_clip.clip_norm", 2.0),
        (["--dataloader_train.max_samples_per_batch", "null"], "dataloader_train.max_samples_per_batch", None),
        (["--dataloader_train.seed", "${trainer.max_iter}"], "dataloader_train.seed", 500),
        (["--job.name", "a b"], "job.name", "a b"),
        (["--job.name", "2024"], "job.name", "2024"),
        (["--job.name="], "job.name", ""),
        (["--optimizer.lr", "1", "--optimizer.lr", "2"], "optimizer.lr", 2.0),
        (["--model.lora_rank", "4"], "model.config.lora_rank", 4),
    ],
)
def test_every_spelling_and_type(words: list[str], path: str, value: Any) -> None:
    found = load(*words)
    for part in path.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    assert found == value
    assert type(found) is type(value)


def test_a_class_and_its_fields_are_chosen_in_any_order(t: ModuleType) -> None:
    words = ["--scheduler", "Cosine", "--scheduler.power", "2.5", "--scheduler.warm_up_steps", "10"]
    for order in (words, [*words[2:], *words[:2]]):
        scheduler = load(*order).scheduler
        assert type(scheduler) is t.Cosine.Config
        assert (scheduler.power, scheduler.warm_up_steps) == (2.5, [10])


def test_another_class_keeps_the_fields_that_both_share(t: ModuleType) -> None:
    """The recipe's reference stays when a cosine becomes a line; the field that only a cosine has is gone."""
    scheduler = load("--scheduler", "Linear").scheduler
    assert type(scheduler) is t.Linear.Config
    assert scheduler.cycle_lengths == [500]
    assert "unknown flag --scheduler.power" in report("--scheduler.power", "2", "--scheduler", "Linear")


class Vae(Configurable):
    class Config(Configurable.Config):
        path: str = "vae"


class Finer(Vae):
    """Takes what a `Vae` has."""


class Strange(Configurable):
    class Config(Configurable.Config):
        path: str = "strange"


class Model(Configurable):
    class Config(Configurable.Config):
        rank: int = 1
        vae: Vae.Config | Strange.Config = field(default_factory=Vae.Config)


class FinerModel(Model):
    class Config(Model.Config):
        vae: Finer.Config = field(default_factory=Finer.Config)  # type: ignore[assignment]


class StrangeModel(Model):
    class Config(Model.Config):
        vae: Strange.Config = field(default_factory=Strange.Config)  # type: ignore[assignment]


def test_a_class_that_narrows_a_nested_type_keeps_what_fits_and_names_the_rest() -> None:
    old = Model.Config(rank=3, vae=Vae.Config(path="mine"))
    assert change_class(old, FinerModel.Config) == (FinerModel.Config(rank=3, vae=Finer.Config(path="mine")), [])
    assert change_class(old, StrangeModel.Config) == (StrangeModel.Config(rank=3), ["vae.path"])


class OwnDefaults(Model):
    class Config(Model.Config):
        rank: int = 8


def test_a_class_with_other_defaults_keeps_only_what_was_set() -> None:
    assert change_class(Model.Config(), OwnDefaults.Config)[0] == OwnDefaults.Config(rank=8)
    assert change_class(Model.Config(rank=3), OwnDefaults.Config)[0] == OwnDefaults.Config(rank=3)
    assert change_class(OwnDefaults.Config(), Model.Config)[0] == Model.Config(rank=1)


def test_a_word_that_changes_a_class_names_what_is_dropped(t: ModuleType) -> None:
    tree = t.Trainer.Config(scheduler=t.Cosine.Config(power=3.0))
    warnings: list[str] = []
    word = f"scheduler={{type: {t.__name__}.Linear}}"
    apply_overrides(tree, parse_overrides([word], []), [], warnings)
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{word}: scheduler changes from ")
    assert warnings[0].endswith("settings of the former are dropped: power")


def test_a_table_of_components_takes_new_ones(t: ModuleType) -> None:
    words = ["--trainer.callbacks.mine.clip_norm", "9", "--trainer.callbacks.mine", "GradClip"]
    callbacks = load(*words).trainer.callbacks
    assert callbacks["mine"] == t.GradClip.Config(clip_norm=9.0)
    assert list(callbacks) == ["grad_clip", "compile_tokenizer", "mine"]


def test_flags_win_over_the_file_and_the_words_after_the_dashes_over_flags(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[job]\nexperiment = "small"\n[optimizer]\nlr = 1e-3\neps = 1e-6\n[scheduler]\nf_min = [0.5]\n')
    tree = load("--optimizer.lr", "2", "--optimizer.eps", "3", source=str(path), tail=("optimizer.eps=4",))
    assert (tree.optimizer.lr, tree.optimizer.eps, tree.scheduler.f_min) == (2.0, 4.0, [0.5])


def test_all_mistakes_are_in_one_report_with_the_flag_as_it_was_typed() -> None:
    text = report(
        *("--optimizer.lrr", "1", "--optimizer.lr", "fast", "--trainer.max-iter", "1", "2", "--scheduler", "Cosin"),
        *("--model.config.ema.enabled", "maybe", "--optimizer.keys-to-select", "--optimizer", "--dryrn"),
        *("--scheduler.anything", "1", "--no-model.config.ema.enabled", "x", "--lr", "1", "--a..b", "1"),
    )
    assert text.startswith("11 mistakes")
    for expected in (
        "unknown flag --optimizer.lrr\n       | --optimizer.lrr 1\n",
        "did you mean --optimizer.lr?",
        "optimizer.lr: expected a number, found 'fast' (text)\n       | --optimizer.lr fast\n",
        "this flag needs one value; unexpected: '2'",
        "no class for this section is named 'Cosin'",
        "did you mean 'Cosine'?",
        "model.config.ema.enabled: expected true or false, found 'maybe'",
        "for an empty list write --optimizer.keys-to-select []",
        "this is a section, not a value",
        "did you mean --dryrun?",
        "a --no- flag must have no value",
        "is not a path",
    ):
        assert expected in text
    assert "scheduler.anything" not in text, "a field of a class that is wrong is no mistake of its own"


def test_mistakes_of_the_file_and_of_flags_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[job]\nexperiment = "small"\nnam = "x"\n')
    text = report("--optimizer.lrr", "1", source=str(path))
    assert "2 mistakes" in text
    assert f"{path}:3:1: job.nam" in text


def test_without_a_tree_flags_say_nothing() -> None:
    problems: list[Problem] = []
    assert read_flags(None, [TypedFlag("a.b-c", ("1",))], problems) == problems == []


def test_own_options_keep_their_words_and_the_source_is_found_among_the_rest() -> None:
    rest, flags = split_flags(["--a.b", "1", "NAME", "--sft-toml", "f", "--c", "--dryrun", "-h"], OWN)
    assert rest == ["--sft-toml", "f", "--dryrun", "-h"]
    assert flags == [TypedFlag("a.b", ("1", "NAME")), TypedFlag("c")]
    assert take_source(flags, lambda word: word == "NAME") == "NAME"
    assert flags[0] == TypedFlag("a.b", ("1",))
    behind = [TypedFlag("job.name", ("NAME",)), TypedFlag("e", ("NAME",))]
    assert take_source(behind, lambda word: word == "NAME") == "NAME"
    assert take_source([TypedFlag("a", ("1",))], lambda word: False) is None


def test_two_classes_of_one_name_must_be_written_in_full(t: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first_module", "second_module"):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(class_tags, "_TRUSTED", {*class_tags._TRUSTED, name})
        module.__dict__["Base"] = t.Linear
        exec("class Twin(Base):\n    pass", module.__dict__)
    assert len(class_choices(t.Linear.Config)["Twin"]) == 2
    text = report("--scheduler", "Twin")
    assert "several classes are named Twin" in text
    assert "second_module.Twin" in text
    assert type(load("--scheduler", "second_module.Twin").scheduler) is sys.modules["second_module"].Twin.Config


def test_damaged_flags_end_in_a_tree_or_a_config_error() -> None:
    """600 random lines of flags, values, brackets, quotes and references; nothing else may be raised."""
    draw = random.Random(7)
    names = [format_path(path) for path in all_paths(get_recipe("small"))]
    values = [
        "1",
        "-1",
        "1e400",
        "true",
        "null",
        "",
        "x",
        "[",
        "[1",
        "{",
        "{a: 1}",
        "{type: x}",
        "'",
        '"',
        "${",
        "${a}",
    ]
    values += [
        "${trainer.max_iter}",
        "???",
        "Cosine",
        "Linear",
        "a.B",
        "\udc80",
        "[[",
        "]",
        "a=b",
        "[0.9, 0.95]",
        "9" * 5000,
    ]
    outcomes = {True: 0, False: 0}
    for _ in range(600):
        words = []
        for _ in range(draw.choice([1, 1, 2, 4])):
            name = draw.choice(names)
            if draw.random() < 0.3:
                name = draw.choice(
                    [name[:-1], f"no-{name}", f"{name}.x", f"{name}.0", f"{name}[9]", f".{name}", "", "-"]
                )
            words += [f"--{name}{draw.choice(['', '', '=1'])}", *draw.choices(values, k=draw.choice([0, 1, 1, 1, 2]))]
        try:
            load(*[word for word in words if word != "--"])
            outcomes[True] += 1
        except ConfigError:
            outcomes[False] += 1
    assert min(outcomes.values()) > 20, outcomes


def test_the_recipe_is_chosen_in_one_way_by_flags_and_words(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[job]\nexperiment = "small"\n')
    stack = tmp_path / "stack.yaml"
    stack.write_text("recipe: small\n")
    named = tmp_path / "named.yaml"
    named.write_text("job: {experiment: small}\n")
    for source in ("small", str(file), str(stack), str(named)):
        assert load(source=source).job.experiment == "small"
        if source != str(file):  # a TOML says its task, and that of the other recipe is another one
            chosen = load("--job.experiment", "small_vlm", source=source)
            assert chosen == load(source=source, tail=("job.experiment=small_vlm",)) == load(source="small_vlm")
        for words, tail in ((("--job.experiment", "smal"), ()), ((), ("experiment=smal",))):
            with pytest.raises(ConfigError, match="no recipe is named 'smal'"):
                load(*words, source=source, tail=tail)


def test_a_file_that_names_two_recipes_or_holds_a_whole_tree_refuses_another(tmp_path: Path) -> None:
    both = tmp_path / "both.yaml"
    both.write_text("recipe: small\njob: {experiment: small_vlm}\n")
    assert "names another recipe than `recipe: small`" in report(source=str(both))
    whole = tmp_path / "whole.yaml"
    whole.write_text(to_yaml(get_recipe("small")))
    assert load("--job.experiment", "small", source=str(whole)).job.experiment == "small"
    assert "the file is a complete config, built from the recipe 'small'" in report(
        "--job.experiment", "small_vlm", source=str(whole)
    )


def test_a_wrong_value_for_a_table_or_section_is_a_mistake_and_no_traceback() -> None:
    added = ("--trainer.callbacks.mine", "GradClip")
    assert "expected a table, each value a Callback.Config section" in report(*added, "--trainer.callbacks", "5")
    assert "expected a LoopConfig section, found 5" in report(*added, "--trainer", "5")
