"""The record of a run: the weights and the data that it started from, and a run that starts from another one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from toy_runs import ROWS, VAL_ROWS, make_world, toy_config, validated

from worldsmith.actions.find_parent import find_parent
from worldsmith.files.fingerprint import fingerprint
from worldsmith.monitor.lineage import read_lineage
from worldsmith.training.run_folder import redact_settings
from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def parent(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four steps from random weights, saved after two of them."""
    folder = tmp_path_factory.mktemp("parent")
    Trainer(validated(toy_config(world, steps=4, save_iter=2)), run_folder=folder).train()
    return folder


def test_a_run_records_its_data(world: Path, parent: Path) -> None:
    record = read_lineage(parent)
    assert record.action == "train"
    assert record.data["settings"]["trainer"]["max_iter"] == 4
    assert [(e["role"], e["path"], e["split"], e["fingerprint"]) for e in record.inputs] == [
        ("dataset", str(world / ROWS), "train", fingerprint(world / ROWS)),
        ("dataset", str(world / VAL_ROWS), "val", fingerprint(world / VAL_ROWS)),
    ]
    assert [e["records"] for e in record.inputs] == [6, 5]


def test_a_run_from_a_parent(world: Path, parent: Path, tmp_path: Path) -> None:
    """It takes the weights of the parent's last checkpoint, and goes on in its own folder when it is started again."""
    config = toy_config(world, steps=4, save_iter=2)
    config.trainer.max_iter = 2
    own = shutil.copytree(parent, tmp_path / "own")
    config.checkpoint.load_path = str(find_parent(str(own)).model)
    Trainer(config, run_folder=tmp_path / "run").train()
    last, before = own / "checkpoints" / "iter_000000004", read_lineage(tmp_path / "run")
    (base,) = (entry for entry in before.inputs if entry["role"] == "base")
    assert (base["path"], base["fingerprint"]) == (str(last), fingerprint(last))
    assert base["record"] == str(own / "lineage.json")
    shutil.rmtree(own)
    config.trainer.max_iter = 3
    again = Trainer(config, run_folder=tmp_path / "run")
    assert again.iteration == 2, "its own checkpoint"
    after = read_lineage(tmp_path / "run")
    assert (after.inputs, after.data["settings"]["trainer"]["max_iter"]) == (before.inputs, 3)
    again.lock.release()


def test_settings_redact_settings() -> None:
    tree = {"a": {"api_key": "sesame", "lr": 1.0}, "url": "https://me:word@host/x"}
    assert redact_settings(tree) == {"a": {"api_key": "<redacted>", "lr": 1.0}, "url": "https://<redacted>@host/x"}
