"""Validation in the loop, with the toy family: what it measures, and that it leaves nothing behind."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toy_runs
from toy_family import Row, ToyTask
from toy_runs import make_world, read_checkpoint, read_losses, read_validations, require_same_end, toy_config, validated

from worldsmith.actions.dry_run import plan_run
from worldsmith.config.errors import ConfigError
from worldsmith.config.tree.references import resolve
from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.objectives.objective import BatchLoss
from worldsmith.training.preflight import check_files
from worldsmith.training.trainer import Outcome, Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight steps, validated before them, after steps 3 and 6, and after the last."""
    folder = tmp_path_factory.mktemp("whole")
    Trainer(validated(toy_config(world)), run_folder=folder).train()
    return folder


@pytest.fixture
def plain_loss() -> Iterator[None]:
    loss = ToyTask.loss
    yield
    ToyTask.loss = loss  # type: ignore[method-assign]


def mean_loss(world: Path, weights: dict[str, torch.Tensor], prefix: str) -> float:
    """By hand: over the rows in the order of epoch 0 with seed 7, with the noise that seed 7 gives their places."""
    rows = [[float(word) for word in line.split()] for line in (world / toy_runs.VAL_ROWS).read_text().splitlines()]
    errors = []
    for position, index in enumerate(np.random.RandomState([7, 0, 0]).permutation(len(rows))):
        numbers, target = torch.tensor(rows[index][:4]), torch.tensor(rows[index][4:])
        noise = torch.randn(4, generator=torch.Generator().manual_seed(1_000_003 * 7 + position))
        for layer in range(2):
            numbers = weights[f"{prefix}layers.{layer}.weight"] @ numbers + weights[f"{prefix}layers.{layer}.bias"]
        errors.append((numbers - target - 0.1 * noise).square().mean().item())
    return sum(errors) / len(errors)


def test_it_is_the_mean_over_every_sample_once_with_the_live_and_the_averaged_weights(world: Path, whole: Path) -> None:
    lines = read_validations(whole)
    assert [(step, samples) for step, _, _, samples in lines] == [(0, 5), (3, 5), (6, 5), (8, 5)]
    _, live, averaged, _ = lines[-1]
    weights = read_checkpoint(whole / "checkpoints/iter_000000008")
    assert live == pytest.approx(mean_loss(world, weights, "model/net."), rel=1e-6)
    assert averaged == pytest.approx(mean_loss(world, weights, "model/net_ema."), rel=1e-6)
    assert abs(live - averaged) > 1e-3
    assert lines[0][1] == lines[0][2]  # the average starts as a copy


def test_training_is_the_same_to_the_bit_with_and_without(
    world: Path, tmp_path: Path, plain_loss: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a task that draws from the generators of the process: they go on as if nothing had been."""
    plain = ToyTask.loss

    def loss(task: ToyTask, batch: Sequence[Row], *, seed: int) -> BatchLoss:
        found = plain(task, batch, seed=seed)
        return replace(found, sum=found.sum * (random.random() + np.random.rand() + torch.rand(())))

    monkeypatch.setattr(ToyTask, "loss", loss)
    Trainer(toy_config(world), run_folder=tmp_path / "without").train()
    Trainer(validated(toy_config(world), every=1), run_folder=tmp_path / "with").train()
    assert len(read_validations(tmp_path / "with")) == 9
    require_same_end(tmp_path / "with", tmp_path / "without")
    positions = [(tmp_path / run / "checkpoints/iter_000000008/dataloader") for run in ("with", "without")]
    texts = [[file.read_bytes() for file in sorted(place.iterdir())] for place in positions]
    assert texts[0] == texts[1] != []


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_run_validates_as_an_uninterrupted_one(
    world: Path, whole: Path, tmp_path: Path, workers: int
) -> None:
    """It stops right after a step that is validated, and does that again: the same bits, said once."""
    for steps in (3, 8):
        config = validated(toy_config(world), workers=workers)
        config.trainer.max_iter = steps
        Trainer(config, run_folder=tmp_path).train()
    assert read_validations(tmp_path) == read_validations(whole)
    assert read_losses(tmp_path) == read_losses(whole)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_stop_does_not_wait_for_it_and_it_is_made_up_for(
    world: Path, whole: Path, tmp_path: Path, plain_loss: None, batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGTERM at a batch of the validation after step 3, the fourth being one of the averaged weights."""
    plain, seen = ToyTask.loss, []

    def loss(task: ToyTask, rows: Sequence[Row], *, seed: int) -> BatchLoss:
        if task.split == "val":
            seen.append(rows)
            if len(seen) == 6 + batch:
                os.kill(os.getpid(), signal.SIGTERM)
        return plain(task, rows, seed=seed)

    ToyTask.loss = loss  # type: ignore[method-assign]
    assert Trainer(validated(toy_config(world)), run_folder=tmp_path).train() is Outcome.STOPPED
    assert len(seen) == 6 + batch
    assert "step 3: the validation ends early because of the stop request" in caplog.text
    assert [line[0] for line in read_validations(tmp_path)] == [0]
    ToyTask.loss = plain  # type: ignore[method-assign]
    Trainer(validated(toy_config(world)), run_folder=tmp_path).train()
    assert read_validations(tmp_path) == read_validations(whole)
    require_same_end(tmp_path, whole)


def test_it_sees_a_network_in_eval_mode_and_leaves_it_as_it_was(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, average and modes; no gradient is kept. Also after a failure in the midst of it."""
    trainer = Trainer(validated(toy_config(world)), run_folder=tmp_path)
    network, validator = trainer.model.network, trainer.validator
    assert validator is not None
    network.layers[0].eval()
    average = trainer.state.ema
    average.started = True
    average.ema_weights["layers.0.bias"] += 1.0
    before = {name: tensor.clone() for name, tensor in trainer.state.weights.state_dict().items()}
    plain, seen = ToyTask.loss, []

    def loss(task: ToyTask, batch: Sequence[Row], *, seed: int) -> BatchLoss:
        if len(seen) == 8:
            raise RuntimeError("in the midst")
        found = plain(task, batch, seed=seed)
        bias = network.layers[0].bias[0].item()
        seen.append((any(m.training for m in network.modules()), found.sum.requires_grad, bias))
        return found

    monkeypatch.setattr(ToyTask, "loss", loss)

    def require_as_before() -> None:
        assert [m.training for m in (network, *network.layers)] == [True, False, True]
        assert all(torch.equal(before[name], tensor) for name, tensor in trainer.state.weights.state_dict().items())

    assert validator.run(average) is not None
    require_as_before()
    assert [line[:2] for line in seen] == [(False, False)] * 6
    assert [bias for _, _, bias in seen] == [0, 0, 0, 1, 1, 1]
    with pytest.raises(RuntimeError, match="in the midst"):
        validator.run(average)
    require_as_before()


def test_max_val_iter_cuts_it_after_so_many_packs(world: Path, tmp_path: Path) -> None:
    config = validated(toy_config(world))
    config.trainer.max_val_iter = 2
    Trainer(config, run_folder=tmp_path).train()
    assert [samples for _, _, _, samples in read_validations(tmp_path)] == [4] * 4


def test_rows_that_cannot_be_read_are_left_out_and_listed_apart(tmp_path: Path) -> None:
    """Another row of the training data is damaged; neither list has that of the other."""
    world = make_world(tmp_path / "world")
    for name, bad in ((toy_runs.ROWS, 1), (toy_runs.VAL_ROWS, 4)):
        lines = (world / name).read_text().splitlines()
        lines[bad] = "no number"
        (world / name).write_text("\n".join(lines))
    Trainer(validated(toy_config(world)), run_folder=tmp_path / "run").train()
    assert [samples for _, _, _, samples in read_validations(tmp_path / "run")] == [4] * 4
    assert '"key": "row_1"' in (tmp_path / "run/quarantine.jsonl").read_text()
    (line,) = (tmp_path / "run/quarantine_val.jsonl").read_text().splitlines()
    assert '"key": "row_4"' in line


def test_it_needs_data_and_data_of_the_family(world: Path) -> None:
    config = validated(toy_config(world))
    config.dataloader_val = None
    with pytest.raises(
        ConfigError, match=r"trainer.run_validation = true and dataloader_val = null: there is no validation data"
    ):
        Trainer(config, run_folder=Path("never"))
    config.dataloader_val = PackingDataLoader.Config(max_samples_per_batch=2)
    with pytest.raises(
        ConfigError,
        match=r'dataloader_val.type = "PackingDataLoader": a model of the family .toy. requires a RowLoader',
    ):
        Trainer(config, run_folder=Path("never"))


def test_its_files_are_looked_at_with_the_others_if_it_is_on(world: Path, tmp_path: Path) -> None:
    config = validated(toy_config(world))
    config.dataloader_train.dataset.path = config.dataloader_val.dataset.path = str(tmp_path / "absent")
    found = [problem.path for problem in check_files(config, tmp_path / "run")]
    assert found == ["dataloader_train.dataset", "dataloader_val.dataset"]
    config.trainer.run_validation = False
    assert [problem.path for problem in check_files(config, tmp_path / "run")] == ["dataloader_train.dataset"]


def test_a_plan_reads_a_first_pack_of_it_and_says_when_it_is_done(world: Path, tmp_path: Path) -> None:
    config = validated(toy_config(world))
    lines = list(plan_run(resolve(config), tmp_path / "run", world_size=1))
    first = lines.index("validation   before the first step, after every 3 steps and the last: all samples")
    assert lines[first + 1 : first + 3] == [
        f"             5 samples in {world / 'val_rows.txt'}; skipped: none",
        "             first pack: 2 samples, 8 tokens; row_1 is its first sample",
    ]
    assert not (tmp_path / "run").exists()
    config.trainer.run_validation = False
    lines = list(plan_run(resolve(config), tmp_path / "run", world_size=1))
    assert "validation   none; enable it with `-- trainer.run_validation=true`" in lines


def test_all_of_it_may_change_when_a_run_goes_on_and_other_data_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(tmp_path / "world")
    config = toy_config(world)
    config.trainer.max_iter = 2
    Trainer(config, run_folder=tmp_path / "run").train()
    config = validated(toy_config(world), every=2)
    config.trainer.max_iter = 4
    Trainer(config, run_folder=tmp_path / "run").train()
    (world / toy_runs.VAL_ROWS).write_text("1 2 3 4 5 6 7 8\n" * 3)
    config = validated(toy_config(world), every=7)
    config.trainer.max_val_iter, config.dataloader_val.seed = 1, 8
    assert "validation data have changed" not in caplog.text
    Trainer(config, run_folder=tmp_path / "run").train()
    assert "the validation data have changed" in caplog.text
    assert "samples gone (2): row_3, row_4" in caplog.text
    assert [line[0] for line in read_validations(tmp_path / "run")] == [2, 4, 7, 8]


def test_samples_that_are_trained_on_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = make_world(tmp_path / "world")
    config = validated(toy_config(world))
    shared = (world / toy_runs.ROWS).read_text().splitlines()[:2]
    with (world / toy_runs.VAL_ROWS).open("a") as file:
        file.write("\n".join(shared) + "\n")
    overlap = "are also in the training data"
    assert [line for line in plan_run(resolve(config), tmp_path / "run", world_size=1) if overlap in line]
    with caplog.at_level(logging.WARNING):
        Trainer(config, run_folder=tmp_path / "run").train()
    (message,) = [message for message in caplog.messages if overlap in message]
    assert message.startswith(f"validation: 2 of 7 samples of {world / toy_runs.VAL_ROWS} {overlap}")


def test_what_it_found_is_said_and_drawn(
    whole: Path, world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = validated(toy_config(world))
    config.trainer.callbacks["metrics"].tensorboard = True
    with caplog.at_level(logging.INFO, logger="worldsmith"):
        Trainer(config, run_folder=tmp_path).train()
    events = EventAccumulator(str(tmp_path / "metrics"))
    events.Reload()
    expected = read_validations(whole)
    for tag, place in (("val/loss", 1), ("val_ema/loss", 2)):
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert found == [(line[0], pytest.approx(line[place], rel=1e-6)) for line in expected]
    said = [message for message in caplog.messages if message.startswith("validation after step")]
    step, live, averaged, _ = expected[-1]
    assert said[-1].startswith(
        f"validation after step {step}: loss {live:.4f}, EMA weights {averaged:.4f} (5 samples, "
    )
    assert len(said) == 4
