"""A nested spec trains the smallest reasoner, knows where its values come from, and goes on."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import datasets
import pytest
from peft import PeftConfig
from reasoner_runs import make_world
from train_specs import TEMPLATE

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
    words = ["train", "--spec", str(file), "train.seed=7"]
    assert main([*words, *TAIL]) == 0, capsys.readouterr().err
    (run,) = (tmp_path / "out/cosmos_rl/smallest").iterdir()
    assert (run / "checkpoints/iter_000000006").is_dir()  # 2 epochs of 6 samples, 2 a step
    assert load(str(run)).tree.trainer.seed == 7
    origins = json.loads((run / "config_origins.json").read_text())
    assert origins["optimizer.lr"]["origin"] == "spec.yaml:4"
    assert origins["trainer.seed"]["origin"] == "override train.seed=7"
    capsys.readouterr()
    assert main([*words, "train.resume=true", *TAIL]) == 0
    assert "complete: 6 of 6 steps" in capsys.readouterr().out
    longer = [*words, "train.resume=true", "train.epoch=3"]
    assert main([*longer, "--resume-changed", *TAIL]) == 0, capsys.readouterr().err
    assert (run / "checkpoints/iter_000000009").is_dir()
    assert main([*words, "train.output_dir=output", "train.epoch=1", *TAIL]) == 0, capsys.readouterr().err
    assert main([*words, "train.output_dir=output", "train.optm_lr=1e-2", *TAIL]) == 0, capsys.readouterr().err
    found = [load(str(folder)).tree for folder in sorted((tmp_path / "out/output").iterdir())]
    assert [(tree.optimizer.lr, tree.trainer.max_iter) for tree in found] == [(1e-3, 3), (1e-2, 6)]


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
    assert list((tmp_path / "out").rglob("metrics.jsonl"))
    assert not list((tmp_path / "out").rglob("quarantine*.jsonl"))
    assert caplog.text.count("unpacked 5 files of") == (layout == "packed")
    if layout == "held out":
        assert "held out 2 of 6 records for validation" in caplog.text
        assert "validation after step 2: loss" in trained.out
        assert "(2 samples" in trained.out


USUAL = """\
policy.model_max_length=81920 dp_shard_size=1 dp_replicate_size=1 policy.lora.lora_alpha=256 policy.lora.r=16
policy.lora.lora_dropout=0.05 num_epochs=1 batch_size=3 learning_rate=2e-5 train.optm_impl=fused
train.deterministic=true train.ckpt.save_freq_in_epoch=1 train.ckpt.max_keep=1 mini_batch=1
train.train_policy.dataset.test_size=0 train.train_policy.dataloader_num_workers=0 validation.freq_in_epoch=1
validation.batch_size=1 validation.enable_dataset_cache=false logging.logger=[console,tao]
"""
"""The override block of the skill, for one process and six records."""


def test_the_template_with_the_usual_overrides_trains_adapters_with_dropout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "out"))
    make_world(tmp_path)
    file, media = tmp_path / "spec.yaml", {"annotation_path": f"{tmp_path}/data/annotations.json"}
    file.write_text(TEMPLATE.replace("{data}/clips", f"{tmp_path}/data").replace("{data}", f"{tmp_path}/data"))
    words = [f"policy.model_name_or_path={tmp_path}/model", f"custom.val_dataset={json.dumps(media)}"]
    words += ["custom.system_prompt=You are a helpful assistant."]
    tail = ["--", "dataloader_train.dataset.video_fps=optional", "dataloader_val.dataset.video_fps=optional"]
    assert main(["train", "--spec", str(file), *USUAL.split(), *words, *tail]) == 0, capsys.readouterr().err
    run = next((tmp_path / "out").rglob("metrics.jsonl")).parent
    assert (run / "checkpoints/iter_000000002").is_dir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "val/loss" in line] == [2]
    assert main(["export", str(run), "--format", "adapter", "-o", str(tmp_path / "adapter")]) == 0
    found = PeftConfig.from_pretrained(tmp_path / "adapter")
    assert (found.r, found.lora_alpha, found.lora_dropout) == (16, 256, 0.05)
    assert found.base_model_name_or_path == str(tmp_path / "model")
