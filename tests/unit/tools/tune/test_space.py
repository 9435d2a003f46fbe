"""What a search may draw: words and marks, their order, conditions, ratios, weights, and what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import optuna
import pytest

from worldsmith.config.errors import UserError
from worldsmith.config.load import load
from worldsmith.tools.tune.space import Space, as_words

LR = "optimizer.lr"
RANK, ALPHA, ADAPTERS = (f"model.config.lora_{name}" for name in ("rank", "alpha", "enabled"))
TARGETS = 'model.config.lora_target_modules="q_proj"'


@pytest.fixture(scope="module")
def tree() -> Any:
    return load("videophy2_nano_tiny").tree


@pytest.fixture(scope="module")
def adapted() -> Any:
    return load("videophy2_nano_tiny", [f"{ADAPTERS}=true", TARGETS, f"{RANK}=8", f"{ALPHA}=16"]).tree


def draws(space: Space, count: int = 60) -> list[dict[str, Any]]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [space.suggest(study.ask()) for _ in range(count)]


def test_marked_fields_are_searched_while_their_condition_holds(tree: Any, adapted: Any) -> None:
    assert [dimension.path for dimension in Space(tree).dimensions] == [LR]
    assert {dimension.path for dimension in Space(adapted).dimensions} == {LR, RANK, ALPHA}
    assert {dimension.path for dimension in Space(adapted, keep=[LR]).dimensions} == {RANK, ALPHA}
    only = Space(adapted, ["trainer.seed=1|2"], marked=False)
    assert [dimension.path for dimension in only.dimensions] == ["trainer.seed"]


def test_alpha_is_tied_to_the_rank_that_is_drawn(adapted: Any) -> None:
    ranks, ratios = set(), set()
    for settings in draws(Space(adapted, keep=[LR])):
        ranks.add(settings[RANK])
        ratios.add(settings[ALPHA] / settings[RANK])
        assert isinstance(settings[ALPHA], int)
    assert ranks == {4, 8, 16, 32, 64}
    assert ratios == {1, 2, 4}
    drawn, _ = Space(adapted, keep=[LR]).untouched()
    assert drawn == {RANK: 3, ALPHA: "2"}  # 2^3, and twice that


def test_a_rate_is_as_likely_in_one_order_of_magnitude_as_in_another(tree: Any) -> None:
    found = [settings[LR] for settings in draws(Space(tree, [f"{LR}=log:1e-6..1e-2"]), 400)]
    assert 1e-6 <= min(found) < 3e-6
    assert 5e-3 < max(found) <= 1e-2
    assert 150 < sum(rate < 1e-4 for rate in found) < 250
    assert all(float(f"{rate:.4g}") == rate for rate in found)


def test_weights_are_kept(tree: Any) -> None:
    space = Space(tree, ["trainer.grad_accum_iter=1@6|2@3|4|8@0"], marked=False)
    counted = Counter(settings["trainer.grad_accum_iter"] for settings in draws(space, 400))
    assert counted.keys() == {1, 2, 4}
    assert counted[1] > 1.5 * counted[2] > 2 * counted[4]


def test_a_class_comes_before_its_fields_and_a_condition_after_what_it_names(tree: Any) -> None:
    words = ["scheduler.f_max=[1.0]|[0.5] if scheduler=LambdaLinear", "scheduler=LambdaCosine|LambdaLinear"]
    for settings in draws(Space(tree, words, marked=False)):
        assert list(settings) == ["scheduler", "scheduler.f_max"][: len(settings)]
        assert ("scheduler.f_max" in settings) == (settings["scheduler"] == "LambdaLinear")
        load("videophy2_nano_tiny", as_words(settings))  # words that the run takes
    pairs = ["trainer.logging_iter=1..5 if trainer.cpu_threads=2", "trainer.cpu_threads=1|2|null"]
    kinds = {(s["trainer.cpu_threads"], "trainer.logging_iter" in s) for s in draws(Space(tree, pairs, marked=False))}
    assert kinds == {(1, False), (2, True), (None, False)}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("optimzer.lr=1..2", "did you mean 'optimizer.lr'"),
        ("optimizer.learn=1..2", "'optimizer' has no key 'learn'"),
        (f"{LR}=2..1", "the lower limit 2 is not below the upper limit 1"),
        (f"{LR}=1..1", "is not below"),
        (f"{LR}=-1..1", "must be finite and at least 0, found -1"),
        (f"{LR}=log:0..1", "low must be above 0 for a logarithmic range"),
        (f"{LR}=a..b", "the limits of a range must be numbers"),
        (f"{LR}=a|b", "the field accepts a number, not a"),
        (f"{LR}=1e-3", "a search needs more than one choice"),
        (f"{LR}=1e-4@x|3", "a weight after @ must be a number"),
        (f"{LR}=1e-4@-1|3", "one weight per choice"),
        (f"{LR}=", "expected PATH=RANGE"),
        ("=3", "expected PATH=RANGE"),
        ("optimizer.fused", "has no range of its own"),
        ("trainer.max_iter=1.5..2", "the field accepts only integers"),
        ("trainer.max_iter=pow2:3..9", "powers of two"),
        ("job.name=1..2", "is not a number; write choices"),
        ("scheduler=LambdaCosin|LambdaLinear", "did you mean 'LambdaCosine'"),
        (f"{LR}=1e-4..1e-3 if optimizer.x=1", "'optimizer' has no key 'x'"),
        (f"{LR}=1e-4..1e-3 if optimizer.fused=false", "its condition optimizer.fused=false is never true"),
        (f"{LR}=optimizer.x*1|2", "'optimizer' has no key 'x'"),
    ],
)
def test_a_word_that_cannot_be_is_refused_by_name(tree: Any, word: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        Space(tree, [word])
    assert str(refused.value).startswith("--search ")
    assert said in str(refused.value)


def test_what_goes_in_a_circle_or_leaves_nothing_is_refused(tree: Any) -> None:
    circle = ["trainer.max_iter=trainer.logging_iter*1|2", "trainer.logging_iter=trainer.max_iter*1|2"]
    with pytest.raises(UserError, match="circular dependency"):
        Space(tree, circle)
    with pytest.raises(UserError, match=r"optimizer.lr occurs twice"):
        Space(tree, [f"{LR}=1e-4..1e-3", f"{LR}=1e-5..1e-3"])
    with pytest.raises(UserError, match="no setting to search"):
        Space(tree, keep=[LR])
    with pytest.raises(UserError, match="no setting to search"):
        Space(tree, marked=False)
    with pytest.raises(UserError, match=r"--keep trainer.seed: the field is not searchable; searched: .*optimizer.lr"):
        Space(tree, keep=["trainer.seed"])
