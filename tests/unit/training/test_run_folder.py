"""Where a run lives, and which changes a resumed run may bring."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_runs import make_world, toy_config

from worldsmith.config.errors import UserError
from worldsmith.config.sections import JobConfig
from worldsmith.config.tree.reader import from_yaml
from worldsmith.training.run_folder import differences, flatten, output_root, run_path
from worldsmith.training.trainer import Outcome, Trainer


@pytest.fixture(autouse=True)
def no_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT"])
def test_root_comes_from_either_variable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert output_root() == Path("outputs/train")
    monkeypatch.setenv(name, "/data/runs")
    assert run_path(JobConfig(project="p", group="g", name="n")) == Path("/data/runs/p/g/n")


def test_two_roots_that_disagree_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert f"job.name is empty: a new run, in {trainer.run_folder}" in caplog.text
    assert len(set(folders)) == 3
    assert {folder.parent for folder in folders} == {tmp_path / "runs/tests/tiny"}
    again = from_yaml((folders[0] / "config.yaml").read_text())
    assert again.job.name == folders[0].name
    assert Trainer(again).state.iteration == 4
    assert config.job.name == ""


def test_differences_name_paths_and_both_values() -> None:
    before = flatten({"optimizer": {"lr": 1.0, "betas": [0.9, 0.99]}, "trainer": {"max_iter": 5}, "old": 1})
    after = flatten({"optimizer": {"lr": 2.0, "betas": [0.9, 0.99]}, "trainer": {"max_iter": 9}, "new": 1})
    assert differences(before, after) == [
        "optimizer.lr: 1.0 -> 2.0",
        "old: 1 -> '(absent)'",
        "new: '(absent)' -> 1",
    ]


def test_free_settings_are_whole_sections_and_not_name_prefixes() -> None:
    assert differences({"checkpoint.save_iter": 1}, {"checkpoint.save_iter": 2}) == []
    assert differences({"checkpointing": 1}, {"checkpointing": 2}) != []
    assert differences({"dataloader_train.latent_cache": ""}, {"dataloader_train.latent_cache": "/scratch"}) == []
