"""Training in float16: the scale of the loss, and steps that overflow, against a loop with torch's own GradScaler."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_runs
from metrics_files import read_metrics
from torch.func import functional_call

from worldsmith.config import WrongValueError
from worldsmith.models.ema import PowerEMA
from worldsmith.training.optimizer import LossScaler
from worldsmith.training.trainer import Trainer

HIGH = 2.0**18
"""A scale at which the first steps of the toy family overflow."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_runs.make_world(tmp_path_factory.mktemp("world"))


def half_config(world: Path, *, steps: int = 8, growth_interval: int | None = 2, **settings: Any) -> Trainer.Config:
    config = toy_runs.toy_config(world, steps=steps)
    config.model.config.precision = "float16"
    config.checkpoint.async_save = False
    config.model.config.ema = PowerEMA.Config(max_decay=0.9)
    config.scheduler.cycle_lengths, config.optimizer.decay_vectors = [8], False
    config.trainer.loss_scale = LossScaler.Config(init_scale=HIGH, growth_interval=growth_interval)
    for name, value in settings.items():
        setattr(config.trainer, name, value)
    return config


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two packs a step, clipping, skipped steps, a scale that falls and grows, biases without decay."""
    folder = tmp_path_factory.mktemp("whole")
    Trainer(half_config(world), run_folder=folder).train()
    return folder


def lines(folder: Path) -> list[tuple[int, float, bool]]:
    return [(line["step"], line["loss_scale"], line["skipped"]) for line in read_metrics(folder / "metrics.jsonl")]


def test_steps_are_those_of_a_loop_with_torch_amp(world: Path, whole: Path) -> None:
    """Scales, skips, norms before clipping and the last weights, to the bit; their average is that of diffusers."""
    from diffusers.training_utils import EMAModel

    config = half_config(world)
    judge = config.model.config.build(seed=config.trainer.seed).network
    settings = {"betas": (0.9, 0.99), "eps": 1e-8, "fused": True}
    groups = [{"params": [p], "weight_decay": 0.01 * (p.ndim > 1)} for p in judge.parameters()]
    optimizer = torch.optim.AdamW(groups, lr=3e-2, **settings)
    average = EMAModel(judge.parameters(), decay=0.9)
    average.step(judge.parameters())  # its first one is a copy
    scaler = torch.amp.GradScaler("cpu", init_scale=HIGH, growth_interval=2)
    trainer = Trainer(config, run_folder=whole.parent / "unused")  # for its data and its rates
    batches, schedule = iter(trainer.state.loader), trainer.state.scheduler.scheduler.lr_lambdas[0]
    found, norms, taken = [], [], 0
    for step in range(1, 9):
        for batch in (next(batches), next(batches)):
            half = {name: p.half() for name, p in judge.named_parameters()}
            answers = functional_call(judge, half, torch.tensor([row.numbers for row in batch]).half()).float()
            losses = trainer.task.objective.losses(answers, batch, seed=config.trainer.seed)
            scaler.scale(losses.sum() / 4).backward()
        scale = scaler.get_scale()
        scaler.unscale_(optimizer)
        norms.append(float(torch.nn.utils.clip_grad_norm_(judge.parameters(), 1.0)))
        for group in optimizer.param_groups:
            group["lr"] = 3e-2 * schedule(taken)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found.append((step, scale, scaler.get_scale() < scale))
        if not found[-1][2]:
            average.step(judge.parameters())
            taken += 1
    assert lines(whole) == found
    assert [skipped for _, _, skipped in found].count(True) > 1
    scales = [scale for _, scale, _ in found]
    assert any(later > earlier for earlier, later in itertools.pairwise(scales)), "it has grown"
    saved = toy_runs.read_checkpoint(whole / "checkpoints/iter_000000008")
    for (name, parameter), mean in zip(judge.named_parameters(), average.shadow_params, strict=True):
        assert torch.equal(saved[f"model/net.{name}"], parameter.detach()), name
        torch.testing.assert_close(saved[f"model/net_ema.{name}"], mean, rtol=1e-6, atol=1e-7)
    logged = [line["grad_norm"] for line in read_metrics(whole / "metrics.jsonl")]
    assert [norm for norm in logged if norm is not None] == [norm for norm in norms if norm < float("inf")]
    assert int(saved["scheduler/last_epoch"]) == taken


def test_the_scale_goes_on_where_it_was(world: Path, whole: Path, tmp_path: Path) -> None:
    """Stopped in the middle of the steps after which the scale grows."""
    for steps in (3, 5, 8):
        Trainer(half_config(world, steps=steps), run_folder=tmp_path).train()
    toy_runs.require_same_end(tmp_path, whole)
    assert {"trainer/loss_scale[scale]", "trainer/loss_scale[steps]"} <= toy_runs.read_checkpoint(
        whole / "checkpoints/iter_000000008"
    ).keys()


def test_overflows_are_said_and_skipped_though_single_entries_may_be_repaired(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing moves; the samples of such a step are not under suspicion; the first gradients are looked at later."""
    trainer = Trainer(half_config(world), run_folder=tmp_path)
    looked: list[int] = []
    trainer.task.check_gradients = lambda *_: looked.append(trainer.iteration)  # type: ignore[method-assign]
    before = {name: tensor.clone() for name, tensor in trainer.state.weights.state_dict().items()}
    batches = iter(trainer.state.loader)
    step = trainer.training_step(batches)
    assert (step.overflowed, step.skipped) == (True, True)
    assert step.gradient is not None
    assert step.gradient.zeroed == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.state.weights.state_dict().items())
    assert "Skipping step 1: float16 overflows at the loss scale 262144; the next step uses 131072" in caplog.text
    while trainer.training_step(batches).skipped:
        pass
    assert looked == [trainer.iteration - 1]
    assert not (tmp_path / "bad_batches").exists()


def test_a_static_scale_stays(world: Path, tmp_path: Path) -> None:
    config = half_config(world, steps=3, growth_interval=None)
    Trainer(config, run_folder=tmp_path).train()
    assert lines(tmp_path) == [(step, HIGH, True) for step in (1, 2, 3)]


def test_a_resumed_run_may_take_another_static_scale(world: Path, tmp_path: Path) -> None:
    config = half_config(world, steps=1, growth_interval=None)
    Trainer(config, run_folder=tmp_path).train()
    config.trainer.max_iter, config.trainer.loss_scale.init_scale = 2, 8.0
    Trainer(config, run_folder=tmp_path, resume_changed=True).train()
    assert lines(tmp_path) == [(1, HIGH, True), (2, 8.0, False)]


def test_what_has_no_effect_or_no_sense_is_refused(world: Path) -> None:
    config = half_config(world)
    config.model.config.parallelism.fsdp_master_dtype = "bfloat16"
    with pytest.raises(WrongValueError, match="float16 requires float32 weights"):
        config.model.config.check()
    config.model.config.parallelism.fsdp_master_dtype = "float32"
    config.model.config.precision = "float32"
    with pytest.raises(WrongValueError, match=r"(?s)only float16 uses a loss scale.*omit loss_scale"):
        config.check()
