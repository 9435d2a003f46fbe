"""References: types kept, text embedded, environment, time, assets, and errors that name the key that asks."""

from __future__ import annotations

from datetime import datetime
from types import ModuleType

import pytest

from worldsmith.config import ConfigError, get_recipe, ref
from worldsmith.config.tree.references import resolve


def test_a_whole_reference_keeps_its_type_and_an_embedded_one_is_text(t: ModuleType) -> None:
    tree = t.Trainer.Config()
    tree.trainer.max_iter = ref("checkpoint.save_iter")
    tree.scheduler.cycle_lengths = ["${trainer.max_iter}"]
    tree.optimizer.lr = ref("trainer.max_iter")
    tree.job.name = "run_${trainer.max_iter}_${optimizer.fused}"
    resolved = resolve(tree)
    assert resolved.scheduler.cycle_lengths == [100]
    assert resolved.optimizer.lr == 100.0
    assert type(resolved.optimizer.lr) is float
    assert resolved.job.name == "run_100_true"
    assert tree.trainer.max_iter == "${checkpoint.save_iter}"


def test_sections_lists_and_items_can_be_referred_to(t: ModuleType) -> None:
    tree = t.Trainer.Config()
    tree.optimizer.betas = ref("scheduler.f_max")
    tree.optimizer.eps = ref("scheduler.f_start[0]")
    tree.optimizer.lr_multipliers = {"a.b": 3.0, "c": ref('optimizer.lr_multipliers."a.b"')}
    tree.trainer.callbacks["again"] = ref("trainer.callbacks.grad_clip")
    resolved = resolve(tree)
    assert (resolved.optimizer.betas, resolved.optimizer.eps) == ([1.0], 1e-6)
    assert resolved.optimizer.lr_multipliers["c"] == 3.0
    assert resolved.trainer.callbacks["again"] == t.GradClip.Config()
    assert resolved.trainer.callbacks["again"] is not resolved.trainer.callbacks["grad_clip"]


def test_environment_variables_take_the_type_of_the_field(t: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WS_NUMBER", "12")
    monkeypatch.delenv("WS_NONE", raising=False)
    tree = t.Trainer.Config()
    tree.trainer.max_iter = "${oc.env:WS_NUMBER}"
    tree.job.name = "${oc.env:WS_NUMBER}"
    tree.checkpoint.load_path = "${oc.env:WS_NONE,/d/e,f}"
    tree.checkpoint.save_iter = "${oc.env:WS_NONE,${trainer.max_iter}}"
    tree.job.group = "${oc.env:WS_NONE,}"
    tree.dataloader_train.max_sequence_length = "${oc.env:WS_NONE,null}"
    resolved = resolve(tree)
    assert (resolved.trainer.max_iter, resolved.job.name) == (12, "12")
    assert (resolved.checkpoint.load_path, resolved.checkpoint.save_iter) == ("/d/e,f", 12)
    assert (resolved.job.group, resolved.dataloader_train.max_sequence_length) == ("", None)


def test_the_time_is_one_instant_and_an_asset_is_its_folder(t: ModuleType) -> None:
    tree = t.Trainer.Config()
    tree.job.name = "${now:%Y-%m-%d}_${now:%H-%M-%S}"
    assert resolve(tree, now=datetime(2026, 1, 2, 3, 4, 5)).job.name == "2026-01-02_03-04-05"
    tree.job.name = "${asset:no_such}"
    with pytest.raises(ConfigError, match=r"job.name: unknown asset 'no_such'"):
        resolve(tree)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("${trainer.max_itr}", "did you mean ${trainer.max_iter}?"),
        ("${optimizer.max_iter}", "did you mean ${trainer.max_iter}?"),
        ("${oc.env:WS_NOT_SET}", "environment variable 'WS_NOT_SET' is not set"),
        ("${env:X}", "write ${oc.env:…}"),
        ("${trainer.max_iter", "no closing brace"),
        ("x${optimizer}", "is a section"),
        ("${job.name}", "circular reference: job.name -> job.name"),
        ("${}", "must not be empty"),
        ("${custom.a}", "not interpreted"),
        ("${asset:../x}", "not an asset name"),
        ("${trainer.max_iter}", "expected text, found 500 (an integer) from ${trainer.max_iter}"),
    ],
)
def test_a_reference_that_cannot_be_resolved_names_the_key_that_asks(t: ModuleType, text: str, words: str) -> None:
    tree = t.Trainer.Config(custom={"a": 1})
    tree.job.name = text
    with pytest.raises(ConfigError) as caught:
        resolve(tree)
    assert [problem.path for problem in caught.value.problems] == ["job.name"]
    assert words in str(caught.value)


def test_a_cycle_is_reported_once_with_its_whole_path(t: ModuleType) -> None:
    tree = t.Trainer.Config()
    tree.trainer.max_iter = ref("checkpoint.save_iter")
    tree.checkpoint.save_iter = ref("trainer.logging_iter")
    tree.trainer.logging_iter = ref("trainer.max_iter")
    with pytest.raises(ConfigError) as caught:
        resolve(tree)
    assert len(caught.value.problems) == 1
    text = "trainer.max_iter -> checkpoint.save_iter -> trainer.logging_iter -> trainer.max_iter"
    assert text in str(caught.value)


def test_every_section_is_checked_on_the_resolved_tree_and_all_complaints_are_kept(t: ModuleType) -> None:
    tree = get_recipe("small")
    tree.optimizer.lr = -1.0
    tree.scheduler.f_max = [1.0, 2.0]
    tree.model.config.parallelism.context_parallel_shard_degree = 0
    with pytest.raises(ConfigError) as caught:
        resolve(tree)
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"optimizer", "scheduler", "model.config.parallelism"}


def test_values_changed_in_place_are_checked_too(t: ModuleType) -> None:
    tree = t.Trainer.Config()
    tree.optimizer.betas.append("x")
    with pytest.raises(ConfigError, match=r"optimizer.betas\[2\]: expected a number"):
        resolve(tree)


@pytest.mark.parametrize(("text", "advice"), [("${A}", "write ${oc.env:A}"), ("${HOME}", "write ${oc.env:HOME}")])
def test_a_name_of_the_environment_gets_the_way_to_write_it(t: ModuleType, text: str, advice: str) -> None:
    tree = t.Trainer.Config()
    tree.job.name = text
    with pytest.raises(ConfigError) as caught:
        resolve(tree)
    assert advice in str(caught.value)
    assert "did you mean" not in str(caught.value)
