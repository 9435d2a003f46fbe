"""A family that the package does not know, through the trainer and out again; see tests/support/toy_family.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toy_runs
from kill_workers import KillWorkers
from metrics_files import read_metrics
from toy_family import Row, RowMaker, ToyModel, ToyTask
from toy_runs import read_checkpoint, read_losses, require_same_end, toy_config

from worldsmith.checkpoint.formats.find_model import load_model
from worldsmith.cli.main import main
from worldsmith.config.errors import ConfigError
from worldsmith.config.tree.plain import to_yaml
from worldsmith.data.stream.sample_maker import SampleResult
from worldsmith.objectives.objective import BatchLoss
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.training.trainer import Outcome, Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_runs.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert Trainer(toy_config(world), run_folder=folder).train() is Outcome.FINISHED
    return folder


def test_it_learns(world: Path, tmp_path: Path) -> None:
    Trainer(toy_config(world, steps=100, save_iter=100), run_folder=tmp_path).train()
    losses = [line[1] for line in read_losses(tmp_path)]
    assert sum(losses[-5:]) < 0.1 * sum(losses[:5])


@pytest.mark.parametrize("workers", [0, 2])
def test_it_resumes_bit_for_bit(world: Path, whole: Path, tmp_path: Path, workers: int) -> None:
    config = toy_config(world, workers=workers)
    config.trainer.max_iter = 3
    Trainer(config, run_folder=tmp_path).train()
    config.trainer.max_iter = 8
    Trainer(config, run_folder=tmp_path).train()
    require_same_end(tmp_path, whole)


def test_workers_that_are_killed_change_no_bit(
    world: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In four steps, between the gradients and the update of the weights; the last of them needs no more data."""
    plain = RowMaker.make

    def large(maker: RowMaker, position: int) -> SampleResult[Row]:  # so that a pipe does not hold all of them
        row = plain(maker, position).item
        assert isinstance(row, Row)
        return SampleResult(replace(row, key=row.key.ljust(100_000)))

    monkeypatch.setattr(RowMaker, "make", large)
    trainer = Trainer(toy_config(world, workers=2), run_folder=tmp_path)
    trainer.callbacks["kill"] = KillWorkers(KillWorkers.Config(), folder=tmp_path)
    assert trainer.train() is Outcome.FINISHED
    require_same_end(tmp_path, whole)
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["loaded"]["workers_died"] > 2


def test_recomputation_adapters_and_bfloat16_are_the_trainers_and_work_for_it(
    world: Path, whole: Path, tmp_path: Path
) -> None:
    config = toy_config(world)
    config.model.config.activation_checkpointing.mode = "full"
    Trainer(config, run_folder=tmp_path / "full").train()
    require_same_end(tmp_path / "full", whole)
    config = toy_config(world)
    config.model.config.lora_enabled, config.model.config.lora_target_modules = True, "layers.0"
    Trainer(config, run_folder=tmp_path / "lora").train()
    saved = read_checkpoint(tmp_path / "lora/checkpoints/iter_000000008")
    assert {name.split(".")[2] for name in saved if name.startswith("optim/")} == {"0"}
    assert saved["model/net.layers.0.lora_B.weight"].any()


def test_it_is_planned_trained_and_exported_by_the_commands(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The tree goes through YAML; the export has the averaged weights and loads as the same model."""
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "out"))
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(toy_config(world)))
    assert main(["train", str(file), "--dryrun"]) == 0
    assert "40 parameters, 40 trained" in capsys.readouterr().out
    assert main(["train", str(file), "--model.config.width", "4"]) == 0
    run = tmp_path / "out/tests/tiny/run"
    assert main(["export", str(run), "--dtype", "float32", "-o", str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    assert isinstance(model, ToyModel)
    saved = read_checkpoint(run / "checkpoints/iter_000000008")
    for name, parameter in model.network.named_parameters():
        assert torch.equal(parameter, saved[f"model/net_ema.{name}"])


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "objective",
            RectifiedFlow.Config(),
            "objective.type = \"RectifiedFlow\": a model of the family 'toy' requires a",
        ),
        ("model.name", "cosmos3", "name = \"cosmos3\": config is a ToyModel.Config, which belongs to the family 'toy'"),
        ("job.task", "vlm", "models of the family 'toy' need another task\n    -> use \"vfm\""),
        ("model.config.parallelism.context_parallel_shard_degree", 2, "'toy' do not support context parallelism"),
        ("model.config.lora_enabled", True, 'lora_target_modules = "": it is empty'),
        ("trainer.callbacks.compile_tokenizer.enabled", True, "family 'toy' have no encoder to compile"),
    ],
)
def test_what_does_not_fit_the_family_is_refused(world: Path, path: str, value: object, message: str) -> None:
    from worldsmith.training.callbacks.step_speed import CompileTokenizer

    config = toy_config(world)
    config.trainer.callbacks["compile_tokenizer"] = CompileTokenizer.Config()
    *sections, name = path.split(".")
    section = config
    for part in sections:
        section = section[part] if isinstance(section, dict) else getattr(section, part)
    setattr(section, name, value)
    with pytest.raises(ConfigError, match=message):
        Trainer(config, run_folder=Path("never"))


def test_further_figures_are_means_over_the_step_and_are_logged(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tensors may have a graph, which nothing holds on to after the step."""
    plain = ToyTask.loss

    def loss(task: ToyTask, batch: Sequence[Row], *, seed: int) -> BatchLoss:
        found = plain(task, batch, seed=seed)
        return replace(found, metrics={"twice": (2 * found.sum, len(batch))})

    monkeypatch.setattr(ToyTask, "loss", loss)
    config = toy_config(world)
    config.trainer.max_iter = 2
    Trainer(config, run_folder=tmp_path).train()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["twice"] for line in lines] == [2 * line["loss"] for line in lines]


def test_a_step_without_weight_changes_nothing(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No forward pass; the step counts as skipped, and the next one goes on."""
    trainer = Trainer(toy_config(world), run_folder=tmp_path)
    batches, before = iter(trainer.state.loader), {n: t.clone() for n, t in trainer.state.weights.state_dict().items()}
    with monkeypatch.context() as patch:
        patch.setattr(ToyTask, "weigh", lambda task, batch: 0)
        patch.setattr(ToyTask, "loss", None)
        assert trainer.training_step(batches).skipped
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.state.weights.state_dict().items())
    assert "Skipping step 1: its batches contain no sample to train on" in caplog.text
    assert not trainer.training_step(batches).skipped
    assert trainer.iteration == 2
