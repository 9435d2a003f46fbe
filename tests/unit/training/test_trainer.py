"""The training loop, on the toy family."""

from __future__ import annotations

import collections
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import toy_runs
import yaml
from toy_runs import read_checkpoint, read_losses, require_same_end, toy_config

from worldsmith.actions.dry_run import plan_run
from worldsmith.checkpoint.formats.find_model import load_model
from worldsmith.cli.main import main
from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.tree.plain import to_yaml
from worldsmith.config.tree.references import resolve
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.trainer import Outcome, Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_runs.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an uninterrupted run of eight steps, saved after 4 and 8."""
    folder = tmp_path_factory.mktemp("whole")
    assert Trainer(toy_config(world), run_folder=folder).train() is Outcome.FINISHED
    return folder


def test_run_folder_holds_all_records(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    records = {"config.yaml", "launch_info.yaml", "job_env.yaml", "dataset_windows.txt", "data_report.json"}
    records |= {"metrics.jsonl", "lineage.json", ".lock"}
    assert names == records | {"checkpoints", "grad_clip", "metrics"}
    assert (whole / "checkpoints" / "latest_checkpoint.txt").read_text() == "iter_000000008\n"
    steps = [line[0] for line in read_losses(whole)]
    assert steps == list(range(1, 9))


class Poison:
    """Makes the loss of some steps NaN."""

    def __init__(self, trainer: Trainer, steps: set[int]) -> None:
        self.trainer, self.steps, self.losses = trainer, steps, trainer.task.objective.losses
        trainer.task.objective.losses = self  # type: ignore[method-assign]

    def __call__(self, *arguments: object, seed: int) -> torch.Tensor:
        losses = self.losses(*arguments, seed=seed)
        return losses * float("nan") if self.trainer.iteration + 1 in self.steps else losses


def state_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    from worldsmith.checkpoint.run.optimizer_state import optimizer_state

    state = {**trainer.state.weights.state_dict(), **optimizer_state(trainer.model.network, trainer.state.optimizer)}
    return {name: tensor.clone() for name, tensor in state.items()}


def test_a_nan_step_changes_nothing(world: Path, tmp_path: Path) -> None:
    """Weights, average, moments and schedule stay; the step is counted and the next one goes on."""
    trainer = Trainer(toy_config(world), run_folder=tmp_path)
    Poison(trainer, {2})
    batches = iter(trainer.state.loader)
    trainer.training_step(batches)
    before, rate = state_of(trainer), trainer.state.scheduler.learning_rates
    step = trainer.training_step(batches)
    after = state_of(trainer)
    assert step.skipped
    assert trainer.iteration == 2
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert trainer.state.scheduler.learning_rates == rate
    assert trainer.state.guard.skipped == 1
    assert not trainer.training_step(batches).skipped
    assert not [name for name, tensor in state_of(trainer).items() if torch.equal(after[name], tensor)]


def test_too_many_nan_steps_stop_the_run(world: Path, tmp_path: Path) -> None:
    config = toy_config(world)
    config.trainer.max_consecutive_skipped = 2
    trainer = Trainer(config, run_folder=tmp_path)
    Poison(trainer, {2, 3, 4, 5})
    with pytest.raises(FloatingPointError, match="step 4"):
        trainer.train()


class SignalAt(Callback):
    """Sends a signal to its own process during a step."""

    def __init__(self, step: int, number: int, folder: Path) -> None:
        super().__init__(self.Config(), folder=folder)
        self.step, self.number = step, number

    def on_before_optimizer_step(self, trainer: Trainer, step: object) -> None:
        if trainer.iteration + 1 == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signal_saves_at_the_step_boundary_and_resumes(
    world: Path, whole: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """Stopped in step 3, which is finished and saved; the second start ends like the uninterrupted run."""
    trainer = Trainer(toy_config(world), run_folder=tmp_path)
    trainer.callbacks["signal"] = SignalAt(3, number, tmp_path)
    handler = signal.getsignal(number)
    assert trainer.train() is Outcome.STOPPED
    assert signal.getsignal(number) is handler
    assert (tmp_path / "checkpoints" / "latest_checkpoint.txt").read_text() == "iter_000000003\n"
    assert Trainer(toy_config(world), run_folder=tmp_path).train() is Outcome.FINISHED
    require_same_end(tmp_path, whole)


def test_resume_with_another_config_is_refused_with_the_difference(world: Path, tmp_path: Path) -> None:
    """A longer run or more workers may go on; another learning rate may not, unless asked for, and then it counts."""
    config = toy_config(world, steps=2)
    config.scheduler.cycle_lengths = [8]
    Trainer(config, run_folder=tmp_path).train()
    config.trainer.max_iter, config.dataloader_train.num_workers = 3, 1
    assert Trainer(config, run_folder=tmp_path).train() is Outcome.FINISHED
    config.trainer.max_iter = 4
    config.optimizer.lr = 1e-4
    with pytest.raises(UserError, match=r"optimizer.lr: 0.03 -> 0.0001(.|\n)*--resume-changed"):
        Trainer(config, run_folder=tmp_path)
    trainer = Trainer(config, run_folder=tmp_path, resume_changed=True)
    assert trainer.iteration == 3
    assert max(trainer.state.scheduler.learning_rates) <= 1e-4


def test_warm_start_takes_weights_only(world: Path, whole: Path, tmp_path: Path) -> None:
    """Live weights are those of the other run, the average starts from them, and the step count from 0."""
    config = toy_config(world)
    config.checkpoint.load_path, config.checkpoint.keys_to_skip_loading = str(whole), ["net_ema."]
    trainer = Trainer(config, run_folder=tmp_path)
    source = read_checkpoint(whole / "checkpoints/iter_000000008")
    assert trainer.iteration == 0
    for name, parameter in trainer.model.network.named_parameters():
        assert torch.equal(parameter, source[f"model/net.{name}"])
        assert torch.equal(trainer.state.ema.state_dict()[name], source[f"model/net.{name}"])
    assert not trainer.state.optimizer.state


def test_averaged_weights_become_the_regular_ones_of_a_new_run(
    world: Path, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Live weights and average both start from the other run's average; so do the untrained weights of its exports."""
    config = toy_config(world)
    config.checkpoint.load_path, config.checkpoint.load_ema_to_reg = str(whole), True
    with caplog.at_level("INFO"):
        trainer = Trainer(config, run_folder=tmp_path / "new")
    assert "the raw weights are the EMA weights of the source" in caplog.text
    source = read_checkpoint(whole / "checkpoints/iter_000000008")
    start = load_model(tmp_path / "new", weights="untrained").network.state_dict()
    for name, parameter in trainer.model.network.named_parameters():
        for found in (parameter, trainer.state.ema.state_dict()[name], start[name]):
            assert torch.equal(found, source[f"model/net_ema.{name}"])
    assert not torch.equal(source["model/net.layers.0.weight"], source["model/net_ema.layers.0.weight"])
    config.checkpoint.load_training_state = True
    with pytest.raises(ConfigError, match="optimizer state belongs to the raw weights"):
        Trainer(config, run_folder=tmp_path / "other")


def test_a_source_without_averages_cannot_give_them(world: Path, whole: Path, tmp_path: Path) -> None:
    assert main(["export", str(whole), "--format", "native", "-o", str(tmp_path / "base")]) == 0
    config = toy_config(world)
    config.checkpoint.load_path, config.checkpoint.load_ema_to_reg = str(tmp_path / "base"), True
    with pytest.raises(UserError, match=r"load_ema_to_reg: .* has no EMA weights"):
        Trainer(config, run_folder=tmp_path / "new")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("job.task", "vlm", "family 'toy' need another task"),
        ("model.config.lora_rank", 0, "lora_rank must be at least 1"),
        ("checkpoint.init", "pretrained", 'init = "scratch"'),
        ("trainer.grad_accum_iter", 0, "at least 1"),
    ],
)
def test_what_does_not_work_is_refused_before_anything_is_built(
    world: Path, tmp_path: Path, path: str, value: object, message: str
) -> None:
    config = toy_config(world)
    *sections, name = path.split(".")
    section = config
    for part in sections:
        section = getattr(section, part)
    setattr(section, name, value)
    with pytest.raises(ConfigError, match=message):
        Trainer(config, run_folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_degrees_that_do_not_fit_are_refused_with_the_sum(world: Path, tmp_path: Path) -> None:
    config = toy_config(world)
    config.model.config.parallelism.data_parallel_shard_degree = 4
    with pytest.raises(ValueError, match=r"needs 4 processes, but the run has 1 process;"):
        Trainer(config, run_folder=tmp_path)


def test_dryrun_plans_on_a_disk_that_is_too_small(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole plan is told, and then the error: runs are often planned on another machine than they run on."""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=100))
    lines: list[str] = []
    plan = plan_run(resolve(toy_config(world)), tmp_path / "run", world_size=1)
    with pytest.raises(UserError, match=r"has 0\.0 MiB free"):
        collections.deque(map(lines.append, plan))
    assert [line for line in lines if line.startswith("first pack")]


def test_command_trains_then_says_that_the_run_is_complete(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "out"))
    monkeypatch.delenv("IMAGINAIRE_OUTPUT_ROOT", raising=False)
    file = tmp_path / "run.yaml"
    config = toy_config(world, steps=2)
    config.scheduler.cycle_lengths = [8]
    file.write_text(to_yaml(config))
    assert main(["train", str(file), "--dryrun"]) == 0
    plan = capsys.readouterr().out
    assert plan.startswith("run folder ")
    assert "max_iter:" not in plan
    assert main(["train", str(file), "--dryrun", "--show-tree"]) == 0
    said, _, tree = capsys.readouterr().out.partition("---\n")
    free = re.compile(r"free: .*")  # of the disk, which others write to
    assert (free.sub("", said), yaml.safe_load(tree)["trainer"]["max_iter"]) == (free.sub("", plan), 2)
    assert main(["train", str(file), "--show-tree"]) == 2
    assert "--show-tree requires --dryrun" in capsys.readouterr().err
    assert main(["train", str(file)]) == 0
    assert "done: 2 steps" in capsys.readouterr().out
    assert main(["train", str(file)]) == 0
    assert "is complete: 2 of 2" in capsys.readouterr().out
    assert main(["train", str(file), "--", "trainer.seed=7", "trainer.max_iter=3"]) == 2
    assert "trainer.seed: 42 -> 7" in capsys.readouterr().err
    launch = (tmp_path / "out/tests/tiny/run/launch_info.yaml").read_text()
    assert str(file) in launch


def test_the_tree_is_imported_without_torch() -> None:
    code = "import sys, worldsmith.training.trainer; print([m for m in ('torch', 'numpy', 'av') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
