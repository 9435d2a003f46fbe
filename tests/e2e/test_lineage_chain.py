"""train → export → evaluate → gaps, train → quantize → evaluate, train → train: each by the name of the one before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from reasoner_runs import make_world, reasoner_config

from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.cli.main import main
from worldsmith.config.tree.plain import to_yaml
from worldsmith.monitor.lineage import read_lineage
from worldsmith.training.trainer import Trainer

HOW = ["--task", "binary", "--max-new-tokens", "2"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, conversations, and a finished run `first` that has trained adapters, in runs/."""
    folder = make_world(tmp_path_factory.mktemp("chain"))
    train(folder, "first")
    return folder


def train(world: Path, name: str, *words: str) -> None:
    config = reasoner_config(world, steps=4, save_iter=2)
    config.job.name, config.dataloader_train.processor.media.nframes = name, 3  # type: ignore[attr-defined]
    model: Any = config.model.config
    model.lora_enabled, model.lora_rank, model.lora_target_modules = True, 4, "q_proj,v_proj"
    config.checkpoint.save_weights = "trained"
    Trainer(config, run_folder=world / "runs" / "tests" / "tiny" / name).train()


def data(world: Path) -> list[str]:
    return ["--dataset", "LlavaDataset", "--dataset.path", str(world / "data")]


def test_the_chain(world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(world / "runs"))
    monkeypatch.chdir(world)
    assert main(["export", "--parent", "first", "--format", "adapter", "-o", "runs/lora"]) == 0
    exported = read_lineage(world / "runs" / "lora")
    assert {e["role"]: Path(e["path"]).name for e in exported.inputs} == {"model": "iter_000000004", "base": "model"}

    assert main(["evaluate", "--parent", exported.id, *data(world), *HOW, "-o", "runs/scores"]) == 0
    scored = read_lineage(world / "runs" / "scores")
    assert {e["role"]: Path(e["path"]).name for e in scored.inputs} == {
        "base": "model",
        "adapter": "lora",
        "dataset": "annotations.json",
    }
    assert scored.data["settings"]["processor"]["media"]["nframes"] == 3, "as the run was shown them"

    gaps = ["gaps", "--results-dir", "runs/scores", "--gaps-parquet", "runs/gaps.parquet"]
    assert main([*gaps, "--annotations-out", "runs/next.json"]) == 0
    wrong = json.loads((world / "runs" / "next.json").read_text())
    assert wrong, "weights that are nearly random say neither yes nor no"

    assert main(["quantize", "--parent", "first", "-o", "runs/small", "--scheme", "W8A16", "--group-size", "32",
                 "--no-judge"]) == 0  # fmt: skip
    assert main(["evaluate", "--parent", "runs/small", *data(world), *HOW, "-o", "runs/scores_small"]) == 0
    ask = ["infer", "--parent", "runs/scores_small", "--prompt", "Is it?", "--max-new-tokens", "2"]
    assert main([*ask, "--out", "runs/said.json"]) == 0
    assert read_lineage(world / "runs" / "said.json.lineage.json").inputs[0]["path"] == str(world / "runs" / "small")
    capsys.readouterr()
    assert main(["lineage", "runs/scores_small"]) == 0
    said = capsys.readouterr().out
    for action in ("evaluate", "quantize", "train"):
        assert f"{action} {world}/runs" in said
    assert said.splitlines()[-1] == "inputs are complete and unchanged"

    shutil.copy(world / "model" / "config.json", world / "kept.json")
    (world / "model" / "config.json").write_text(json.dumps(json.loads((world / "kept.json").read_text()), indent=3))
    assert main(["evaluate", "--parent", "runs/lora", *data(world), *HOW, "-o", "runs/other"]) == 2
    assert f"the base {world}/model has changed since" in capsys.readouterr().err
    shutil.copy(world / "kept.json", world / "model" / "config.json")


def test_a_run_from_a_parent_has_its_weights(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(world / "runs"))
    config = reasoner_config(world, steps=3, save_iter=3)
    config.job.name = "second"
    config.scheduler.warm_up_steps, config.optimizer.lr = [0], 0.0  # type: ignore[attr-defined]
    model: Any = config.model.config
    model.lora_enabled, model.lora_rank, model.lora_target_modules = True, 4, "q_proj,v_proj"
    (world / "second.yaml").write_text(to_yaml(config))
    assert main(["train", str(world / "second.yaml"), "--parent", "first"]) == 0
    second = world / "runs" / "tests" / "tiny" / "second"
    (base,) = (entry for entry in read_lineage(second).inputs if entry["role"] == "base")
    assert base["path"] == str(world / "runs" / "tests" / "tiny" / "first" / "checkpoints" / "iter_000000004")
    before, after = (find_model(second.with_name(name)).open(merge=False) for name in ("first", "second"))
    names = [name for name in before.shapes if ".lora_" in name]
    assert names
    assert all(before.read(name).equal(after.read(name)) for name in names)


def test_an_export_with_its_record_is_complete_and_may_be_replaced(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(world / "runs"))
    export = ["export", "--parent", "first:iter=4", "--format", "adapter", "-o", str(tmp_path / "lora")]
    assert main(export) == 0
    first = read_lineage(tmp_path / "lora")
    assert main(export) == 0
    assert "already complete" in capsys.readouterr().out
    assert read_lineage(tmp_path / "lora").data == first.data
    assert main([*export, "--dtype", "float32", "--force"]) == 0
    again = read_lineage(tmp_path / "lora")
    assert again.data["settings"]["dtype"] == "float32"
    assert (again.id != first.id, Path(again.inputs[0]["path"]).name) == (True, "iter_000000004")
