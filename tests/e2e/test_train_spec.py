"""A nested spec trains the smallest reasoner, knows where its values come from, and goes on."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import datasets
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


def write_layout(world: Path, layout: str) -> list[str]:
    """Lays the world's data out in another way; the words by which a spec names it."""
    data = world / "data"
    table = [f"custom.dataset.annotation_path={data}/annotations.json"]
    if layout == "saved":
        rows = []
        for record in json.loads((data / "annotations.json").read_text()):
            asked, answer = (turn["value"] for turn in record["conversations"])
            shown = [{"type": k, k: str(data / record[k])} for k in ("image", "video") if k in record]
            text = {"type": "text", "text": asked.rpartition("\n")[2]}
            turns = [{"role": "user", "content": [*shown, text]}, {"role": "assistant", "content": answer}]
            rows.append({"conversations": json.dumps(turns)})
        datasets.Dataset.from_list(rows).save_to_disk(str(world / "saved"))
        return [f"custom.dataset.path={world}/saved"]
    if layout == "packed":
        with tarfile.open(data / "videos.tar.gz", "w:gz") as archive:
            for file in sorted(data.glob("chat*")):
                archive.add(file, f"videos/{file.name}")
                file.unlink()
        return [*table, f"custom.dataset.media_path={data}/videos.tar.gz"]
    return [*table, "validation.enable=true", "train.train_policy.dataset.test_size=2", "validation.freq=2"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["saved", "packed", "held out"])
def test_a_spec_trains_on_each_layout_of_data(
    layout: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "out"))
    words = write_layout(make_world(tmp_path), layout)
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("WORLD", str(tmp_path)))
    command = ["--spec", str(file), "~custom.train_dataset", *words, "train.max_num_steps=2"]
    tail = ["--", "checkpoint.init=scratch"]
    assert main(["check", *command, *tail]) == 0, capsys.readouterr()
    capsys.readouterr()
    assert main(["train", *command, *tail, "trainer.cpu_threads=1"]) == 0, capsys.readouterr().err
    trained = capsys.readouterr()
    assert "step 2/2  loss" in trained.out
    assert not (tmp_path / "out/cosmos_rl/sft/smallest/quarantine.jsonl").exists()
    assert caplog.text.count("unpacked 5 files of") == (layout == "packed")
    if layout == "held out":
        assert "held out 2 of 6 records for validation" in caplog.text
        assert "validation after step 2: loss" in trained.out
        assert "(2 samples" in trained.out
