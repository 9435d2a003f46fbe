"""A nested spec trains the smallest reasoner, knows where its values come from, and goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reasoner_runs import make_world

from worldsmith.cli.main import main
from worldsmith.config.load import load

SPEC = """\
train:
  epoch: 2
  train_batch_per_replica: 2
  optm_lr: 1.0e-3
  optm_warmup_steps: 2
  param_dtype: float32
  compile: false
  train_policy: {type: sft, mini_batch: 1}
policy:
  model_name_or_path: WORLD/model
  model_max_length: 512
  parallelism: {tp_size: 1}
logging: {experiment_name: smallest, log_interval: 1}
custom:
  train_dataset: {annotation_path: WORLD/data/annotations.json}
  vision: {nframes: 4}
"""
TAIL = ("--", "checkpoint.init=scratch", "dataloader_train.dataset.video_fps=optional")


@pytest.mark.slow
def test_a_spec_trains_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "out"))
    make_world(tmp_path)
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("WORLD", str(tmp_path)))
    assert main(["train", "--spec", str(file), "train.seed=7", *TAIL]) == 0, capsys.readouterr().err
    run = tmp_path / "out/cosmos_rl/sft/smallest"
    assert (run / "checkpoints/iter_000000006").is_dir()  # 2 passes over 6 samples, 2 a step
    assert load(str(run)).tree.trainer.seed == 7
    origins = json.loads((run / "config_origins.json").read_text())
    assert origins["optimizer.lr"]["origin"] == "spec.yaml:4"
    assert origins["trainer.seed"]["origin"] == "override train.seed=7"
    capsys.readouterr()
    assert main(["train", "--spec", str(file), "train.seed=7", *TAIL]) == 0
    assert "complete: 6 of 6 steps" in capsys.readouterr().out
    longer = ["train", "--spec", str(file), "train.seed=7", "train.epoch=3"]
    assert main([*longer, "--resume-changed", *TAIL]) == 0, capsys.readouterr().err
    assert (run / "checkpoints/iter_000000009").is_dir()
