"""The first steps of a reasoner: gates on gradients and labels, and what a batch weighs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_reasoner import DECODERS, conversation, decoder, make_task, mixed_batch, model_config, qwen3_vl, write_folder

from worldsmith.config.errors import UserError
from worldsmith.data.conversations.chat_processor import IGNORED
from worldsmith.distributed.world import World
from worldsmith.families.vision_language.policy import FreezeConfig
from worldsmith.families.vision_language.task import VisionLanguageTask
from worldsmith.tasks.registry import task_of
from worldsmith.training.parallel import build_model
from worldsmith.training.step import StepInputs, StepResult, forward_backward


@pytest.fixture
def task(tmp_path: Path) -> VisionLanguageTask:
    return make_task(model_config(write_folder(tmp_path)).build(seed=1))


def step_of(task: VisionLanguageTask, samples: list[Any]) -> StepResult:
    task.model.network.zero_grad()
    return forward_backward(StepInputs(0, [samples]), task, seed=0)


def check(task: VisionLanguageTask, samples: list[Any]) -> None:
    step = step_of(task, samples)
    task.check_gradients(step.weight, step.sums)


def test_the_family_is_known() -> None:
    assert task_of("vision_language") is VisionLanguageTask


def test_a_batch_weighs_its_supervised_tokens(task: VisionLanguageTask) -> None:
    batch = mixed_batch()
    assert task.weigh(batch) == sum(int((sample.labels[1:] != IGNORED).sum()) for sample in batch) == 12
    assert step_of(task, batch).weight == 12


def test_the_first_token_is_never_supervised(task: VisionLanguageTask) -> None:
    sample = conversation(1)
    sample = replace(sample, labels=sample.input_ids.clone())
    assert task.weigh([sample]) == sample.num_tokens - 1
    assert step_of(task, [sample]).weight == sample.num_tokens - 1


def test_a_step_without_supervised_tokens_is_refused_at_first(task: VisionLanguageTask) -> None:
    sample = conversation(1)
    silent = [replace(sample, labels=torch.full_like(sample.labels, IGNORED))]
    with pytest.raises(UserError, match="no token of the first step is supervised"):
        check(task, silent)
    task.in_first_step = False
    check(task, silent)


def test_a_part_without_gradient_is_named_when_it_is_first_reached(task: VisionLanguageTask) -> None:
    merger = task.model.network.model.visual
    for layer in (merger.merger, *merger.deepstack_merger_list):
        torch.nn.init.zeros_(layer.linear_fc2.weight)  # nothing comes through to the blocks
    check(task, [conversation(1)])  # text alone
    with pytest.raises(UserError, match="first gradient of the vision component is zero"):
        check(task, mixed_batch())


def test_a_gradient_that_is_not_finite_is_named(task: VisionLanguageTask) -> None:
    with torch.no_grad():
        task.model.network.model.language_model.norm.weight[3] = torch.nan
    with pytest.raises(UserError, match="first gradient of the language component is not finite"):
        check(task, [conversation(1)])


def test_frozen_parts_are_not_looked_at(tmp_path: Path) -> None:
    freeze = FreezeConfig(freeze_vision_encoder=True, freeze_mm_projector=True)
    task = make_task(model_config(write_folder(tmp_path, qwen3_vl()), freeze=freeze).build(seed=1))
    check(task, mixed_batch())
    assert task.first_gradients.unchecked == set()


@pytest.mark.parametrize("name", ["qwen3_vl", *DECODERS])
def test_a_network_in_bfloat16_keeps_its_frequencies_and_gives_nearly_the_same_loss(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, decoder(name) if name in DECODERS else qwen3_vl())
    samples = [conversation(index) for index in range(1, 4)] if name in DECODERS else mixed_batch()
    losses = {}
    for precision in ("float32", "bfloat16"):
        model = build_model(model_config(folder, precision=precision), World())
        model.init_weights(1)
        task = make_task(model)
        losses[precision] = step_of(task, samples).loss
        assert torch.bfloat16 not in {buffer.dtype for buffer in model.network.buffers()}
    assert losses["float32"] == pytest.approx(losses["bfloat16"], rel=1e-2)
    assert losses["float32"] != losses["bfloat16"]
