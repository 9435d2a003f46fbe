"""Defaults of training specs against the classes of Cosmos-RL, and learning rates against its formula.

The classes need pydantic alone. COSMOS_RL names the package's wheel or its unpacked folder; see `reference_code`.
"""

from __future__ import annotations

import functools
import math
import types
from pathlib import Path
from typing import Any

import pytest
from key_rules import keys_without_rule
from reference_code import COSMOS_RL, OPTIMIZER, config_module

from worldsmith.config.declare.configurable import ABSENT, find
from worldsmith.config.load import load
from worldsmith.dialects.cosmos_rl.names import fields_of, leaf_keys
from worldsmith.dialects.cosmos_rl.train.key_rules import FORM
from worldsmith.dialects.cosmos_rl.train.spec import Lora, TrainSpec
from worldsmith.training.scheduler import multiplier

OTHERWISE = {
    "policy.parallelism.tp_size": "there is no tensor parallelism here, and a file need not say so",
    "train.train_policy.type": "left out is told apart from sft",
    "train.transfer_dtype": "its validator writes master_dtype there",
    "train.train_policy.dataset.split": "its validator makes a list of it",
    "validation.dataset.split": "its validator makes a list of it",
}
"""Keys with another default here, and why."""
OF_TAO = ("custom", "train.optm_warmup_epochs", "validation.", "results_dir", "custom_script")
"""Keys that TAO has added."""


def flat(table: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, dict) and value else {f"{above}{key}": value}
    return found


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    policy = {"lora": {"target_modules": ["q_proj"]}}
    config = config_module().Config.model_validate({"train": {"train_policy": {"type": "sft"}}, "policy": policy})
    return flat(config.model_dump(mode="json"))


def test_defaults_are_those_of_cosmos_rl(theirs: dict[str, Any]) -> None:
    ours = TrainSpec()
    ours.policy.lora = Lora(target_modules=["q_proj"])
    values = {key: find(ours, fields_of(key), ABSENT) for key in leaf_keys(TrainSpec)}
    shared = [key for key in values if key in theirs]
    assert len(shared) > 140
    assert {key for key in shared if values[key] != theirs[key]} == set(OTHERWISE)
    assert [key for key in values if key not in theirs and not key.startswith(OF_TAO)] == []


def test_every_key_of_cosmos_rl_has_a_row(theirs: dict[str, Any]) -> None:
    assert keys_without_rule(FORM, theirs.keys() - {"custom"}) == []


def factor(n: int, total: int, warm_up: int, start: float, end: float, shape: str, ratio: float | None) -> float:
    """The factor of the step after `n` others, as its documentation and code define it."""
    warm_up = min(warm_up, total)
    decay = total - warm_up if ratio is None else min(round(total * ratio), total - warm_up)
    if n < warm_up:
        return 1.0 if warm_up == 1 else start + (1 - start) * n / (warm_up - 1)
    if n < total + 1 - decay or shape == "none":
        return 1.0
    progress = (n - (total - decay)) / decay
    fallen = {
        "linear": 1 - progress,
        "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
        "sqrt": 1 - math.sqrt(progress),
    }[shape]
    return end + (1 - end) * fallen


@pytest.mark.parametrize("shape", ["none", "linear", "cosine", "sqrt"])
@pytest.mark.parametrize("ratio", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("warm_up", [0, 1, 2, 7, 19, 20, 30])
def test_every_step_has_the_learning_rate_that_it_has_there(
    shape: str, ratio: float | None, warm_up: int, tmp_path: Path
) -> None:
    total, start, end = 20, 0.1, 0.05
    file = tmp_path / "spec.yaml"
    file.write_text("train: {train_policy: {type: sft, mini_batch: 1}, train_batch_per_replica: 1}\n")
    words = [
        *(f"train.optm_warmup_steps={warm_up}", f"train.optm_warmup_start_factor={start}"),
        *(f"train.optm_min_lr_factor={end}", f"train.optm_decay_type={shape}", f"train.max_num_steps={total}"),
        "custom.train_dataset.annotation_path=annotations.json",
        *([] if ratio is None else [f"train.optm_decay_ratio={ratio}"]),
    ]
    schedule = load(str(file), spec_words=words).tree.scheduler
    schedule.check()
    here = [multiplier(schedule, n) for n in range(total)]
    there = [factor(n, total, warm_up, start, end, shape, ratio) for n in range(total)]
    assert here == pytest.approx(there, abs=1e-12)


@pytest.mark.parametrize("shape", ["none", "linear", "cosine", "sqrt"])
@pytest.mark.parametrize("ratio", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("warm_up", [0, 1, 7, 20, 30, 0.25, 1.0])
def test_the_formula_is_that_of_the_function_of_cosmos_rl(shape: str, ratio: float | None, warm_up: float) -> None:
    """The function alone is run; the schedule that it hands to its container is the result."""
    total, start, end = 20, 0.1, 0.05
    names = COSMOS_RL.run_definitions(
        OPTIMIZER,
        "build_lr_schedulers",
        functools=functools,
        math=math,
        LRSchedulersContainer=lambda optimizers, schedule: schedule,
    )
    train = types.SimpleNamespace(optm_warmup_steps=warm_up, optm_warmup_start_factor=start, optm_warmup_epochs=None)
    train.optm_decay_ratio, train.optm_decay_type, train.optm_min_lr_factor = ratio, shape, end
    theirs = names["build_lr_schedulers"](None, types.SimpleNamespace(train=train), total)
    steps = int(warm_up * total) if isinstance(warm_up, float) else warm_up
    expected = [factor(n, total, steps, start, end, shape, ratio) for n in range(total)]
    assert [theirs(n) for n in range(total)] == pytest.approx(expected, abs=1e-12)
