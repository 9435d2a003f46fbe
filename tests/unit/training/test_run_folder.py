"""Where a run lives, and which changes a resumed run may bring."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from toy_runs import make_world, toy_config

from worldsmith.cli.launch import share_run_name
from worldsmith.config.errors import UserError
from worldsmith.config.sections import JobConfig
from worldsmith.config.tree.plain import flatten
from worldsmith.config.tree.read_config import from_yaml
from worldsmith.config.tree.references import resolve
from worldsmith.training.run_folder import output_root, run_path
from worldsmith.training.start_checks import changed_values, completion
from worldsmith.training.trainer import Outcome, Trainer


@pytest.fixture(autouse=True)
def no_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT", "WORLDSMITH_RUN_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT"])
def test_root_comes_from_either_variable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert output_root() == Path("outputs/train")
    monkeypatch.setenv(name, "/data/runs")
    assert run_path(JobConfig(project="p", group="g", name="n")) == Path("/data/runs/p/g/n")


def test_two_roots_that_disagree_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", "s3://bucket/runs")
    with pytest.raises(UserError, match=r"WORLDSMITH_OUTPUT_ROOT is an address.*found s3://bucket/runs"):
        run_path(JobConfig(project="p", name="n"))
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", "/a")
    monkeypatch.setenv("IMAGINAIRE_OUTPUT_ROOT", "/b")
    with pytest.raises(UserError, match="WORLDSMITH_OUTPUT_ROOT=/a, IMAGINAIRE_OUTPUT_ROOT=/b"):
        output_root()


def test_a_run_without_a_name_is_a_new_one_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also two within a second; the record has the name, under which the run is continued."""
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "runs"))
    config = toy_config(make_world(tmp_path / "world"), steps=4)
    config.job.name = ""
    folders = []
    for _ in range(3):
        trainer = Trainer(config)
        assert trainer.train() is Outcome.FINISHED
        folders.append(trainer.run_folder)
        assert f"job.name is empty: starting a new run in {trainer.run_folder}" in caplog.text
    assert len(set(folders)) == 3
    assert {folder.parent for folder in folders} == {tmp_path / "runs/tests/tiny"}
    again = from_yaml((folders[0] / "config.yaml").read_text())
    assert again.job.name == folders[0].name
    assert Trainer(again).state.iteration == 4
    assert config.job.name == ""


def test_a_folder_of_runs_stands_for_root_project_and_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = JobConfig(project="p", group="g", name="n", folder="out/a")
    assert run_path(job) == Path("out/a/n")
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path))
    assert run_path(job) == tmp_path / "out/a/n"
    job.folder = "/big/disk"
    assert run_path(job) == Path("/big/disk/n")


def test_a_launch_names_the_run_for_its_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDSMITH_RUN_NAME", "slurm_7")
    assert run_path(JobConfig(folder="a")) == run_path(JobConfig(folder="a")) == Path("a/slurm_7")
    assert run_path(JobConfig(folder="a", name="n")) == Path("a/n")


def test_the_run_that_was_saved_last_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In its own folder, with its own steps; without a run with a checkpoint a new one begins."""
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "runs"))
    config = toy_config(make_world(tmp_path / "world"), steps=4)
    config.job.name, config.job.folder, config.job.resume_newest = "", "mine", True
    first = Trainer(config)
    nothing = (
        f"{tmp_path / 'runs/mine'} has no run with a checkpoint to resume: starting a new run in {first.run_folder}"
    )
    assert caplog.text.count(nothing) == 1
    first.train()
    assert first.run_folder.parent == tmp_path / "runs/mine"
    (tmp_path / "runs/mine/zzz").mkdir()
    assert (
        completion(run_path(config.job), resolve(config))
        == f"the run in {first.run_folder} is complete: 4 of 4 steps are done"
    )
    config.trainer.max_iter = 6
    caplog.clear()
    again = Trainer(config)
    assert (again.run_folder, again.state.iteration) == (first.run_folder, 4)
    assert "a new run" not in caplog.text
    again.train()
    config.optimizer.lr *= 2
    with pytest.raises(UserError, match=r"was started with other settings(.|\n)*optimizer\.lr") as refused:
        Trainer(config)
    assert "trainer.max_iter" not in str(refused.value)
    config.trainer.max_iter = 8
    with pytest.raises(UserError, match=r"optimizer\.lr(.|\n)*trainer\.max_iter: 6 -> 8 (.|\n)*add --resume-changed"):
        Trainer(config)


def test_differences_name_paths_and_both_values() -> None:
    before = flatten({"optimizer": {"lr": 1.0, "betas": [0.9, 0.99]}, "trainer": {"max_iter": 5}, "old": 1})
    after = flatten({"optimizer": {"lr": 2.0, "betas": [0.9, 0.99]}, "trainer": {"max_iter": 9}, "new": 1})
    assert changed_values(before, after) == [
        "optimizer.lr: 1.0 -> 2.0",
        "old: 1 -> '(absent)'",
        "new: '(absent)' -> 1",
    ]


def test_free_settings_are_whole_sections_and_not_name_prefixes() -> None:
    assert changed_values({"checkpoint.save_iter": 1}, {"checkpoint.save_iter": 2}) == []
    assert changed_values({"checkpointing": 1}, {"checkpointing": 2}) != []
    assert changed_values({"dataloader_train.latent_cache": ""}, {"dataloader_train.latent_cache": "/scratch"}) == []


def test_a_package_that_is_installed_elsewhere_has_the_same_assets() -> None:
    path = "model.config.tokenizer.vae_path"
    here, there = "/a/src/worldsmith/assets/tiny_vae", "/b/site-packages/worldsmith/assets/tiny_vae"
    assert changed_values({path: here}, {path: there}) == []
    assert changed_values({path: here}, {path: f"{there}_natural"}) != []
    assert changed_values({path: "/a/vae"}, {path: "/b/vae"}) != []


def test_a_launcher_keeps_a_name_for_its_processes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with share_run_name():
        name = os.environ["WORLDSMITH_RUN_NAME"]
        assert run_path(JobConfig(folder="a")) == Path("a") / name
    assert "WORLDSMITH_RUN_NAME" not in os.environ
    monkeypatch.setenv("WORLDSMITH_RUN_NAME", "slurm_7")
    with share_run_name():
        assert os.environ["WORLDSMITH_RUN_NAME"] == "slurm_7"
    assert os.environ["WORLDSMITH_RUN_NAME"] == "slurm_7"
