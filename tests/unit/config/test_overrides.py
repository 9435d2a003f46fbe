"""Override words: values, adding and removing keys, both kinds of paths, and suggestions."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from worldsmith.config import Config, Problem
from worldsmith.config.command_line.overrides import apply_overrides, parse_overrides


def change(tree: Config, *words: str) -> tuple[list[Problem], list[str]]:
    problems: list[Problem] = []
    warnings: list[str] = []
    apply_overrides(tree, parse_overrides(words, problems), problems, warnings, "vfm")
    return problems, warnings


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("job.name=123", "123"),
        ("job.name=true", "true"),
        ("job.name=1e5", "1e5"),
        ("job.name='a b'", "a b"),
        ('job.name="it\'s"', "it's"),
        ("job.name=it's", "it's"),
        ("job.name=x=y", "x=y"),
        ("job.name=a[b]", "a[b]"),
        ("job.name=[a", "[a"),
        ("job.name=", ""),
        ("job.name= a ", " a "),
        ("job.name=~/x#1!é", "~/x#1!é"),
        ("job.name=${now:%Y}_${trainer.max_iter}", "${now:%Y}_${trainer.max_iter}"),
        ("checkpoint.load_path=null", None),
        ("checkpoint.load_path='null'", "null"),
        ("checkpoint.load_path=a,b", "a,b"),
        ("optimizer.lr=1e-4", 1e-4),
        ("optimizer.lr=3", 3.0),
        ("optimizer.fused=false", False),
        ("optimizer.fused=False", False),
        ("optimizer.betas=[0.8, 1]", [0.8, 1.0]),
        ("optimizer.betas[1]=0.5", [0.9, 0.5]),
        ("optimizer.keys_to_select=[1,true,'x, y',a b]", ["1", "true", "x, y", "a b"]),
        ("optimizer.keys_to_select=[]", []),
        ("optimizer.lr_multipliers={a: 1, 'b.c': 2}", {"a": 1.0, "b.c": 2.0}),
        ('optimizer.lr_multipliers."x.y"=4', {"x.y": 4.0}),
        ("+optimizer.lr_multipliers.z=4", {"z": 4.0}),
        ("trainer.callbacks.compile_tokenizer.warmup_resolutions=[256]", ["256"]),
        ("model.config.ema.rate=0.5", 0.5),
        ("model.ema.rate=0.5", 0.5),
        ("checkpoint.load_path=None", None),
        ("job.name=None", "None"),
        ("job.name=٣", "٣"),
    ],
)
def test_a_word_sets_the_value_with_the_type_of_its_field(t: ModuleType, word: str, expected: Any) -> None:
    tree = t.Trainer.Config()
    assert change(tree, word) == ([], [])
    path = word.lstrip("+").partition("=")[0].replace("model.ema", "model.config.ema")
    node: Any = tree
    for part in path.split('."')[0].split("[")[0].removesuffix(".z").split("."):
        node = node[part] if isinstance(node, dict) else getattr(node, part)
    assert node == expected
    assert type(node) is type(expected)


def test_keys_of_tables_are_added_and_removed(t: ModuleType) -> None:
    tree = t.Trainer.Config(optimizer=t.AdamW.Config(lr_multipliers={"a": 1.0, "b.c": 2.0}))
    assert change(
        tree, "~optimizer.lr_multipliers.a", '~optimizer.lr_multipliers."b.c"', "~trainer.callbacks.grad_clip"
    ) == ([], [])
    assert tree.optimizer.lr_multipliers == {}
    assert list(tree.trainer.callbacks) == ["compile_tokenizer"]
    tag = f"{t.GradClip.__module__}.GradClip"
    assert change(tree, f"+trainer.callbacks.clip={{type: {tag}, clip_norm: 3}}") == ([], [])
    assert tree.trainer.callbacks["clip"] == t.GradClip.Config(clip_norm=3.0)
    assert change(tree, "++trainer.callbacks.clip.clip_norm=4") == ([], [])
    assert tree.trainer.callbacks["clip"].clip_norm == 4.0


def test_a_table_given_for_a_section_changes_only_its_keys_and_type_chooses_a_class(t: ModuleType) -> None:
    tree = t.Trainer.Config(optimizer=t.AdamW.Config(lr=1.0))
    tag = f"{t.Linear.__module__}.Linear"
    assert change(tree, "optimizer={eps: 1, betas: [0, 0]}", f"scheduler={{type: {tag}, f_min: [0.5]}}") == ([], [])
    assert tree.optimizer == t.AdamW.Config(lr=1.0, eps=1.0, betas=[0.0, 0.0])
    assert tree.scheduler == t.Linear.Config(f_min=[0.5])


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("optimizer.lrr=1", "did you mean 'optimizer.lr'?"),
        ("optimzer.lr=1", "did you mean 'optimizer.lr'?"),
        ("trainer.save_iter=1", "did you mean 'checkpoint.save_iter'?"),
        ("Optimizer.LR=1", "did you mean 'optimizer.lr'?"),
        ("trainer.callbacks.grad_clp.clip_norm=1", "did you mean 'trainer.callbacks.grad_clip.clip_norm'?"),
        ("zzz=1", "the config has: job, model"),
        ("optimizer.lr", "write optimizer.lr=…"),
        ("optimizer.lr=x", "expected a number, found 'x' (text)"),
        ("optimizer.lr=", "found '' (text)"),
        ("optimizer.lr=nan", "expected a number"),
        ("trainer.max_iter=1.5", "expected an integer, found 1.5"),
        ("trainer.max_iter='3'", "found '3' (text)"),
        ("optimizer.betas=[1,2", "expected ',' or ']'"),
        ("optimizer.betas=[1,]x", "more follows"),
        ("optimizer.betas=[[1]]", "betas[0]: expected a number"),
        ("optimizer.betas[5]=1", "the list has 2 items"),
        ("optimizer.betas.x=1", "is a list"),
        ("optimizer.lr.x=1", "is a single value"),
        ("optimizer=3", "expected a AdamW.Config section"),
        ("scheduler=Linnear", "did you mean 'Linear'"),
        ("trainer=five", "set its fields"),
        ("trainer=5", "expected a LoopConfig section"),
        ("trainer.callbacks=5", "expected a table"),
        ("trainer.max_iter=٣", "expected an integer, found '٣' (text)"),
        ("optimizer.keys_to_select=[a,???]", "an item of a list cannot be omitted"),
        ("+optimizer.lr=1", "already exists"),
        ("~optimizer.lr", "cannot be removed"),
        ("~optimizer.lr_multipliers.x", "has no key 'x'"),
        ("~optimizer.lr=3", "~ must have no value"),
        ("trainer.callbacks.new=3", "has no key 'new'"),
        ("job.wandb_mode=banana", "one of 'online', 'offline', 'disabled'"),
        ("checkpoint.load_path=???", "stands for a missing value"),
        ("custom.x=1", "no key 'custom'"),
        ("a..b=1", "not a path"),
        ("=1", "not an override"),
        ("--resume-changed", "flags come before `--`"),
        ("job.name=\udcff", "not valid UTF-8"),
    ],
)
def test_a_wrong_word_says_what_is_wrong_and_changes_nothing(t: ModuleType, word: str, words: str) -> None:
    tree = t.Trainer.Config()
    problems, _ = change(tree, word)
    assert len(problems) == 1
    assert words in problems[0].render()
    assert problems[0].file == "override"
    assert tree == t.Trainer.Config()


def test_a_toml_path_without_effect_for_the_task_is_a_warning(t: ModuleType) -> None:
    assert change(t.Trainer.Config(), "model.backbone.model_name=x")[1] == [
        "model.backbone.model_name=x: model.backbone.model_name has no effect for task 'vfm'"
    ]


def test_a_class_is_chosen_by_its_short_name_as_with_a_flag(t: ModuleType) -> None:
    tree = t.Trainer.Config(scheduler=t.Cosine.Config(f_min=[0.5]))
    assert change(tree, "scheduler=Linear") == ([], [])
    assert tree.scheduler == t.Linear.Config(f_min=[0.5])


def test_an_item_of_a_list_is_named_with_a_dot_as_in_a_flag(t: ModuleType) -> None:
    tree = t.Trainer.Config()
    assert change(tree, "optimizer.betas.1=0.5") == ([], [])
    assert tree.optimizer.betas == [0.9, 0.5]
