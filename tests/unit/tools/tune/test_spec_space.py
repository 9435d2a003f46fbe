"""What a search over a nested spec tries: the marks on its fields, which the schema and the manifest print too.

The judges are the train schemas and manifests of NVIDIA TAO 7.0.0 to 7.2 (names, limits, weights and conditions).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest

from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.dialects.cosmos_rl.spec_formats import form_of
from worldsmith.dialects.cosmos_rl.write.spec_folder import tao_schema
from worldsmith.tools.tune.source import Source
from worldsmith.tools.tune.space import Space, as_words
from worldsmith.tools.tune.tune import Tune

LIMITS = {
    "policy.lora.lora_alpha": (1, 1024),
    "policy.lora.r": (1, 256),
    "policy.lora.lora_dropout": (0, 0.1),
    "train.epoch": (1, 20),
    "custom.vision.fps": (1, 3),
    "train.optm_lr": (0, float("inf")),
}
"""The searched numbers of TAO (automl_default_parameters of 7.0.0 and 7.2) and their limits."""
DECAY = {"linear": 0.1, "sqrt": 0.1, "cosine": 0.4, "none": 0.4}
"""option_weights of train.optm_decay_type."""
OTHERS = ("train.train_batch_per_replica", "train.optm_weight_decay")
"""Searched by TAO 7.0.1 and 7.1.0 instead of epochs and fps: 8, 16, 32 and 0 to 0.1 in their guide."""
SPEC = """\
train:
  optm_lr: 1.0e-6
  epoch: 2
  max_num_steps: 100000
  train_batch_per_replica: 8
  compile: false
  train_policy: {type: sft, mini_batch: 1}
policy:
  model_name_or_path: model
  parallelism: {tp_size: 1}
  lora: {r: 8, lora_alpha: 16, target_modules: [q_proj]}
validation: {enable: true}
custom:
  train_dataset: {annotation_path: DIR/annotations.json}
  val_dataset: {annotation_path: DIR/annotations.json}
"""
DENSE = "~policy.lora"


@pytest.fixture
def spec(tmp_path: Path) -> str:
    turns = [{"from": "human", "value": "Is it possible?"}, {"from": "gpt", "value": "yes"}]
    records = [{"id": str(number), "conversations": turns} for number in range(64)]
    (tmp_path / "annotations.json").write_text(json.dumps(records))
    (tmp_path / "spec.yaml").write_text(SPEC.replace("DIR", str(tmp_path)))
    return str(tmp_path / "spec.yaml")


def space(spec: str, *words: str, search: tuple[str, ...] = (), **more: Any) -> Space:
    source = Source(spec, words)
    return Space(source.load().tree, search, spec=source.spec, **more)


def draws(found: Space, count: int = 200) -> list[dict[str, Any]]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [found.suggest(study.ask()) for _ in range(count)]


def paths(found: Space) -> set[str]:
    return {dimension.path for dimension in found.dimensions}


def test_schema_manifest_and_search_name_the_same_keys(spec: str, tmp_path: Path) -> None:
    searched = paths(space(spec))
    schema = tao_schema(form_of("train"))
    assert searched == set(schema["automl_default_parameters"])
    assert searched == {*LIMITS, "train.optm_decay_type"}
    assert main(["schema", "--all", "-o", str(tmp_path / "schemas")]) == 0
    manifest = json.loads((tmp_path / "schemas/manifest.json").read_text())
    assert set(manifest["actions"]["train"]["automl_default_parameters"]) == searched


def test_what_is_drawn_is_within_the_limits_of_tao_with_its_weights_and_conditions(spec: str) -> None:
    found = draws(space(spec), 400)
    for key, (low, high) in LIMITS.items():
        assert all(low <= settings[key] <= high for settings in found if key in settings), key
    for settings in found:
        rank, alpha = settings["policy.lora.r"], settings["policy.lora.lora_alpha"]
        assert rank & (rank - 1) == 0  # math_cond "^ 2", of both
        assert alpha & (alpha - 1) == 0
        assert alpha in (rank, 2 * rank, 4 * rank)
    counted = Counter(settings["train.optm_decay_type"] for settings in found)
    for kind, weight in DECAY.items():
        assert counted[kind] / len(found) == pytest.approx(weight, abs=0.06)


@pytest.mark.parametrize(("words", "low", "high"), [((), 1e-5, 5e-4), ((DENSE,), 5e-7, 2e-5)])
def test_the_range_of_rates_is_that_of_adapters_or_of_all_weights(
    spec: str, words: tuple[str, ...], low: float, high: float
) -> None:
    found = space(spec, *words)
    rates = [settings["train.optm_lr"] for settings in draws(found, 400)]
    assert low <= min(rates) < 1.3 * low
    assert 0.8 * high < max(rates) <= high
    (shown,) = (str(dimension) for dimension in found.dimensions if dimension.path == "train.optm_lr")
    assert shown.startswith(f"train.optm_lr: {low:g} to {high:g}, logarithmic")
    assert ("policy.lora.r" in paths(found)) == (not words)


def test_frames_are_searched_by_the_setting_that_is_free(spec: str) -> None:
    assert "custom.vision.fps" in paths(space(spec))
    assert "custom.vision.fps" not in paths(space(spec, "custom.vision.nframes=8"))


def test_other_marked_keys_are_searched_when_they_are_named(spec: str) -> None:
    search = (*OTHERS, "train.optm_warmup_epochs")
    found = draws(space(spec, search=search, marked=False))
    assert {settings[OTHERS[0]] for settings in found} == {8, 16, 32}
    assert all(0 <= settings[OTHERS[1]] <= 0.1 for settings in found)
    assert {settings["train.optm_warmup_epochs"] for settings in found} == {0, 0.1, 0.2}  # shares of two epochs


def test_names_of_both_kinds_and_short_ones_go_together(spec: str) -> None:
    search = (
        *("learning_rate=log:1e-6..1e-4", "optimizer.fused=true|false", "train.epoch=1|2 if optimizer.fused=true"),
        "trainer.logging_iter=num_epochs*1|2",
    )
    found = space(spec, search=search, marked=False)
    assert paths(found) == {"train.optm_lr", "optimizer.fused", "train.epoch", "trainer.logging_iter"}
    for settings in draws(found, 10):
        assert settings["trainer.logging_iter"] % settings.get("train.epoch", 2) == 0
        tree = Source(spec).load(as_words(settings)).tree
        assert tree.optimizer.lr == settings["train.optm_lr"]
        assert tree.optimizer.fused == settings["optimizer.fused"]
        assert tree.trainer.max_iter == 8 * settings.get("train.epoch", 2)  # 64 records, 8 a step
        assert sum(tree.scheduler.cycle_lengths) == tree.trainer.max_iter


def test_a_key_that_a_field_of_the_run_replaces_is_kept(spec: str) -> None:
    """Words of the run come last, so that the key would change nothing."""
    found = space(spec, "optimizer.lr=1e-5", search=("trainer.max_iter=5|10",))
    assert not {"train.optm_lr", "train.epoch"} & paths(found)
    assert found.kept == [
        "train.epoch: trainer.max_iter is given and has precedence",
        "train.optm_lr: optimizer.lr is given and has precedence",
    ]
    with pytest.raises(
        UserError, match=r"--search train.optm_lr=.*: optimizer.lr is also given and has precedence; omit one"
    ):
        space(spec, search=("train.optm_lr=1e-6|1e-5", "optimizer.lr=1e-6|1e-5"))


def test_a_table_of_rates_is_kept_unless_one_of_them_is_named(spec: str) -> None:
    table = 'train.optm_lr={global: 1e-5, "model.visual": 1e-6}'
    found = space(spec, table)
    assert found.kept == ["train.optm_lr: its value is a list or a table; give a range with --search train.optm_lr=…"]
    named = space(spec, table, search=("train.optm_lr.global=log:1e-6..1e-4",), marked=False)
    (settings,) = draws(named, 1)
    assert Source(spec, [table]).load(as_words(settings)).tree.optimizer.lr == settings["train.optm_lr.global"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("train.optm_rl=1..2", "'train' has no key 'optm_rl'; did you mean 'train.optm_lr'"),
        ("train.epoch=0..3", "must be at least 1, found 0"),
        ("custom.vision.fbs=1|2", "'custom.vision' has no key 'fbs'; did you mean 'custom.vision.fps'"),
        ("train.optm_decay_type=cosin|linear", "not cosin"),
        ("optimizer.learn=1..2", "'optimizer' has no key 'learn'"),
        ("train.output_dir", "has no range of its own"),
    ],
)
def test_a_wrong_word_is_refused_by_name(spec: str, word: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        space(spec, search=(word,))
    assert said in str(refused.value)


def test_a_draw_that_the_spec_refuses_has_its_reason(spec: str) -> None:
    tune = Tune.Config(source=spec, out="study").build().setup
    assert tune.refusal({"train.train_batch_per_replica": 8, "train.train_policy.mini_batch": 3}) is not None
    reason = tune.refusal({"train.train_batch_per_replica": 512, "train.epoch": 1})
    assert reason is not None
    assert reason.startswith("train.train_batch_per_replica: 64 samples")
    assert "fewer than" in reason
    assert "512" in reason
    assert tune.refusal({"train.epoch": 3}) is None
    assert tune.validations({"train.epoch": 5}) == 2  # 40 steps, every 20


def test_the_command_says_what_it_searches(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Tune, "preflight", lambda self: ["run folder   x", "note         the disk is small"])
    words = ["optimizer.fused=false", f"results_dir={tmp_path}", "--keep", "num_epochs", "--dryrun"]
    for source in ([spec], ["--spec", spec]):
        assert main(["tune", *source, *words]) == 0, capsys.readouterr().err
        said = capsys.readouterr().out.splitlines()
        assert f"study       {tmp_path}/tune: 20 trials, 1 in parallel" in said
        assert "search      policy.lora.lora_alpha: 1, 2, 4 times policy.lora.r" in said
        assert not [line for line in said if "train.epoch" in line]
        assert said[-1] == "note        the disk is small"
