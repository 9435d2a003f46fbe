"""What a run saves, takes over and refuses: failed saves, trained weights only, training state, changed data."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
import toy_runs
from metrics_files import read_metrics
from toy_runs import read_checkpoint, read_losses, toy_config

from worldsmith.checkpoint.dcp import dcp_folder as dcp
from worldsmith.checkpoint.dcp.tensor_reader import stored_shapes
from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_yaml
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.preflight import check_space, checkpoint_size
from worldsmith.training.trainer import Outcome, Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_runs.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an uninterrupted run of eight steps, saved after each in the foreground."""
    folder = tmp_path_factory.mktemp("whole")
    Trainer(with_checkpoint(toy_config(world), save_iter=1, async_save=False), run_folder=folder).train()
    return folder


def with_checkpoint(config: Trainer.Config, **settings: object) -> Trainer.Config:
    config.checkpoint = dataclasses.replace(config.checkpoint, **settings)
    return config


def require_same(found: Path, expected: Path, *, leave_out: str = "nothing") -> None:
    ours, theirs = read_checkpoint(found), read_checkpoint(expected)
    theirs = {name: value for name, value in theirs.items() if leave_out not in name}
    assert not [name for name in theirs if not torch.equal(ours[name], theirs[name])]


def test_background_saves_equal_those_that_are_waited_for(world: Path, whole: Path, tmp_path: Path) -> None:
    """Every step saves while the next one trains; all eight checkpoints are the same bits; callbacks hear of all."""
    heard: list[str] = []

    class Listener(Callback):
        def on_save_checkpoint_end(self, trainer: Trainer, checkpoint: Path) -> None:
            assert (checkpoint / "manifest.json").exists()
            heard.append(checkpoint.name)

    trainer = Trainer(with_checkpoint(toy_config(world), save_iter=1), run_folder=tmp_path)
    assert trainer.config.checkpoint.async_save
    trainer.callbacks["listener"] = Listener(Listener.Config(), folder=tmp_path)
    trainer.train()
    names = [f"iter_{step:09d}" for step in range(1, 9)]
    assert heard == names
    for name in names:
        require_same(tmp_path / "checkpoints" / name, whole / "checkpoints" / name)


class Breaking:
    """Makes the saves of some steps fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
        self.steps, self.save_part = steps, dcp.save_part
        monkeypatch.setattr(dcp, "save_part", self)

    def __call__(self, folder: Path, *args: object, **kwargs: object) -> None:
        if int(folder.parent.name[-9:]) in self.steps:
            raise OSError(28, "No space left on device")
        self.save_part(folder, *args, **kwargs)


@pytest.mark.parametrize("background", [False, True])
def test_a_failed_periodic_save_is_counted_and_the_run_goes_on(
    world: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, background: bool,
) -> None:  # fmt: skip
    Breaking(monkeypatch, {2, 6})
    config = with_checkpoint(toy_config(world), save_iter=2, async_save=background)
    trainer = Trainer(config, run_folder=tmp_path)
    assert trainer.train() is Outcome.FINISHED
    assert trainer.failed_saves == 2
    failures = [record.getMessage() for record in caplog.records if "SAVE FAILED" in record.getMessage()]
    assert ["iter_000000002" in failures[0], "iter_000000006" in failures[1]] == [True, True]
    assert "(2 so far)" in failures[1]
    counts = [line["failed_saves"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert counts[0] == 0
    assert counts[-1] == 2 or background  # a save in the background may end after the last line
    assert sorted(p.name[-1] for p in (tmp_path / "checkpoints").glob("iter_*")) == ["4", "8"]
    require_same(tmp_path / "checkpoints/iter_000000008", whole / "checkpoints/iter_000000008")


def test_the_last_save_must_succeed(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends with an error, keeps what was complete, and the same command repeats the lost steps."""
    with monkeypatch.context() as patch:
        Breaking(patch, {8})
        with pytest.raises(SaveError, match="iter_000000008"):
            Trainer(toy_config(world), run_folder=tmp_path).train()
    assert sorted(p.name[-1] for p in (tmp_path / "checkpoints").glob("iter_*")) == ["4"]
    trainer = Trainer(toy_config(world), run_folder=tmp_path)
    assert trainer.iteration == 4
    assert trainer.train() is Outcome.FINISHED


def test_the_command_fails_when_the_last_save_does(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "out"))
    monkeypatch.delenv("IMAGINAIRE_OUTPUT_ROOT", raising=False)
    config = toy_config(world, steps=3)
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    Breaking(monkeypatch, {3})
    assert main(["train", str(tmp_path / "run.yaml")]) == 1
    assert "iter_000000003 could not be written" in caplog.text


def test_stop_file_saves_stops_and_is_removed(world: Path, whole: Path, tmp_path: Path) -> None:
    class Touch(Callback):
        def on_training_step_end(self, trainer: Trainer, step: object) -> None:
            if trainer.iteration == 3:
                (tmp_path / "STOP").touch()

    trainer = Trainer(toy_config(world), run_folder=tmp_path)
    trainer.callbacks["touch"] = Touch(Touch.Config(), folder=tmp_path)
    assert trainer.train() is Outcome.STOPPED
    assert not (tmp_path / "STOP").exists()
    assert (tmp_path / "checkpoints/latest_checkpoint.txt").read_text() == "iter_000000003\n"
    assert Trainer(toy_config(world), run_folder=tmp_path).train() is Outcome.FINISHED
    assert read_losses(tmp_path) == read_losses(whole)


def partly_frozen(world: Path, **checkpoint: object) -> Trainer.Config:
    config = with_checkpoint(toy_config(world), save_weights="trained", **checkpoint)
    config.optimizer.keys_to_select = ["layers.0"]
    return config


@pytest.mark.parametrize("start", ["scratch", pytest.param("load_path", marks=pytest.mark.slow)])
def test_checkpoints_of_trained_weights_resume_bit_for_bit(
    world: Path, whole: Path, tmp_path: Path, start: str
) -> None:
    """They hold the trained weights and their average; the frozen ones come from where the run got them."""
    source = {"load_path": str(whole / "checkpoints/iter_000000004")} if start == "load_path" else {}
    full = partly_frozen(world, **source)
    full.checkpoint.save_weights = "all"
    Trainer(full, run_folder=tmp_path / "full").train()
    config = partly_frozen(world, **source)
    config.trainer.max_iter = 4
    Trainer(config, run_folder=tmp_path / "part").train()
    stored = stored_shapes(tmp_path / "part/checkpoints/iter_000000004/model")
    assert {name.partition(".")[0] for name in stored} == {"net", "net_ema"}
    assert all(any(key in name for key in config.optimizer.keys_to_select) for name in stored)
    config.trainer.max_iter = 8
    trainer = Trainer(config, run_folder=tmp_path / "part")
    assert trainer.iteration == 4
    trainer.train()
    assert read_losses(tmp_path / "part") == read_losses(tmp_path / "full")
    last = "checkpoints/iter_000000008"
    ours, theirs = read_checkpoint(tmp_path / "part" / last), read_checkpoint(tmp_path / "full" / last)
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert len(ours) < len(theirs)


def test_changed_frozen_weights_are_refused(world: Path, whole: Path, tmp_path: Path) -> None:
    """The base may be elsewhere by now, but it must be the same; for random weights the seed is the base."""
    base = tmp_path / "base"
    shutil.copytree(whole / "checkpoints/iter_000000004", base)
    config = partly_frozen(world, load_path=str(base))
    config.trainer.max_iter = 1
    Trainer(config, run_folder=tmp_path / "run").train()
    config.checkpoint.load_path, config.trainer.max_iter = str(whole / "checkpoints/iter_000000004"), 2
    assert Trainer(config, run_folder=tmp_path / "run").iteration == 1
    config.checkpoint.load_path = str(whole / "checkpoints/iter_000000008")
    with pytest.raises(
        UserError, match=r"trained with the frozen weights of checkpoint\.load_path = .*base, but .*8 differ"
    ):
        Trainer(config, run_folder=tmp_path / "run")


def test_a_base_that_trains_on_is_named_with_its_step(
    world: Path, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, that its run must keep it; and at a resume that found a later one in its place."""
    base = tmp_path / "base"
    shutil.copytree(whole, base)
    pointer = base / "checkpoints/latest_checkpoint.txt"
    pointer.write_text("iter_000000004\n")
    config = partly_frozen(world, load_path=str(base))
    config.trainer.max_iter = 1
    Trainer(config, run_folder=tmp_path / "run").train()
    first = base / "checkpoints/iter_000000004"
    assert f"the frozen weights are stored only in {first}" in caplog.text
    pointer.write_text("iter_000000008\n")
    config.trainer.max_iter = 2
    with pytest.raises(UserError, match=f"The run started from {first}/model: use that folder"):
        Trainer(config, run_folder=tmp_path / "run")
    config.checkpoint.load_path = str(first)
    assert Trainer(config, run_folder=tmp_path / "run").iteration == 1


def test_load_training_state_goes_on_where_the_other_run_was(world: Path, whole: Path, tmp_path: Path) -> None:
    """A new run from a checkpoint of another takes everything: it ends bit for bit as that one did."""
    source = str(whole / "checkpoints/iter_000000005")
    config = with_checkpoint(toy_config(world), load_path=source, load_training_state=True, save_iter=8)
    trainer = Trainer(config, run_folder=tmp_path / "run")
    assert trainer.iteration == 5
    trainer.train()
    assert read_losses(tmp_path / "run") == read_losses(whole)[5:]
    require_same(tmp_path / "run/checkpoints/iter_000000008", whole / "checkpoints/iter_000000008")
    report = json.loads((tmp_path / "run/load_report.json").read_text())
    assert report["missing"] == []
    assert len(report["loaded"]) == len(stored_shapes(whole / "checkpoints/iter_000000005/model"))
    config.trainer.max_iter = 5
    with pytest.raises(UserError, match=r"has completed 5 steps, but trainer\.max_iter is 5"):
        Trainer(config, run_folder=tmp_path / "short")


def test_load_training_state_leaves_out_the_moments_of_skipped_weights(
    world: Path, whole: Path, tmp_path: Path
) -> None:
    config = with_checkpoint(
        toy_config(world),
        load_path=str(whole / "checkpoints/iter_000000005"),
        load_training_state=True,
        keys_to_skip_loading=["layers.1", "net_ema."],
    )
    config.trainer.seed = 7
    trainer = Trainer(config, run_folder=tmp_path)
    states = {name: trainer.state.optimizer.state.get(p) for name, p in trainer.model.network.named_parameters()}
    assert not states["layers.1.weight"]
    assert states["layers.0.weight"]["step"] == 5
    assert trainer.iteration == 5
    saved = read_checkpoint(whole / "checkpoints/iter_000000005")
    assert torch.equal(torch.get_rng_state(), saved["trainer/rng_state_0.torch"])
    assert torch.equal(trainer.state.ema.ema_weights["layers.0.weight"], trainer.model.network.layers[0].weight)


def test_load_training_state_needs_a_training_checkpoint(world: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "checkpoints/iter_000000005/model", tmp_path / "weights/model")
    config = with_checkpoint(toy_config(world), load_path=str(tmp_path / "weights"), load_training_state=True)
    with pytest.raises(UserError, match="contains only weights"):
        Trainer(config, run_folder=tmp_path / "run")


def test_changed_data_is_named_and_needs_a_flag(world: Path, whole: Path, tmp_path: Path) -> None:
    """The next pass begins then: no sample of the new data is passed over."""
    file = tmp_path / "rows.txt"
    shutil.copy(world / "rows.txt", file)
    config = toy_config(tmp_path)
    config.trainer.max_iter = 2
    Trainer(config, run_folder=tmp_path / "run").train()
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:4], lines[3]]) + "\n")
    config.trainer.max_iter = 3
    with pytest.raises(UserError) as refused:
        Trainer(config, run_folder=tmp_path / "run")
    message = str(refused.value)
    for part in (
        "number of samples",
        "6 -> 5",
        "samples gone (1): row_5",
        "content (1): row_4",
        "--resume-changed",
    ):
        assert part in message, message
    trainer = Trainer(config, run_folder=tmp_path / "run", resume_changed=True)
    assert trainer.state.loader.state_dict()["next_position"] % 5 == 0
    assert trainer.state.loader.state_dict()["epoch"] >= 1
    trainer.train()
    assert Trainer(config, run_folder=tmp_path / "run").iteration == 3, "now the new data is that of the run"


def test_space_is_checked_before_the_first_step(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One checkpoint must fit; that all will is a remark. The prediction is near the truth."""
    config = toy_config(world, save_iter=1)
    trainer = Trainer(config, run_folder=tmp_path / "run")
    predicted = checkpoint_size(config, trainer.model, 1)
    trainer.train()
    written = sum(p.stat().st_size for p in (tmp_path / "run/checkpoints/iter_000000008").rglob("*.*"))
    assert predicted == pytest.approx(written, rel=0.2)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=3 * predicted))
    assert "8 checkpoints of" in check_space(config, trainer.model, 1, tmp_path)[0]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=predicted - 1))
    with pytest.raises(UserError, match=r"a checkpoint of this run needs .* Free disk space"):
        Trainer(config, run_folder=tmp_path / "other")


class Poison(Callback):
    """Makes the loss of some steps NaN."""

    def __init__(self, trainer: Trainer, steps: set[int]) -> None:
        super().__init__(Callback.Config(), folder=trainer.run_folder)
        self.steps, self.losses = steps, trainer.task.objective.losses
        self.step = 0
        trainer.task.objective.losses = self.poisoned  # type: ignore[method-assign]
        trainer.callbacks["poison"] = self

    def on_training_step_start(self, trainer: Trainer, step: object) -> None:
        self.step = trainer.iteration + 1

    def poisoned(self, *arguments: object, seed: int) -> torch.Tensor:
        losses = self.losses(*arguments, seed=seed)
        return losses * float("nan") if self.step in self.steps else losses


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.name[-9:]) for path in (folder / "checkpoints").glob("iter_*"))


def test_while_steps_are_skipped_nothing_good_is_removed(world: Path, tmp_path: Path) -> None:
    """From step 5 on all are skipped; asked to stop, the run saves, and the two good checkpoints stay."""
    config = with_checkpoint(toy_config(world, steps=20, save_iter=2), keep_latest_k=2)
    trainer = Trainer(config, run_folder=tmp_path)
    Poison(trainer, set(range(5, 21)))

    class Stop(Callback):
        def on_training_step_end(self, trainer: Trainer, step: object) -> None:
            if trainer.iteration == 11:
                (tmp_path / "STOP").touch()

    trainer.callbacks["stop"] = Stop(Stop.Config(), folder=tmp_path)
    assert trainer.train() is Outcome.STOPPED
    assert saved_steps(tmp_path) == [2, 4, 11]
    trainer = Trainer(config, run_folder=tmp_path)  # what was wrong is mended: retention goes on
    assert trainer.state.guard.consecutive == 7
    trainer.config.trainer.max_iter = 12
    trainer.train()
    assert saved_steps(tmp_path) == [11, 12]


def test_a_save_that_falls_on_a_skipped_step_comes_after_the_next_good_one(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(with_checkpoint(toy_config(world, save_iter=3), async_save=False), run_folder=tmp_path)
    Poison(trainer, {3, 4})
    trainer.train()
    assert saved_steps(tmp_path) == [5, 6, 8]
    assert "step 3: the save is postponed until a step is not skipped" in caplog.text
