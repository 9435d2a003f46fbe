"""`worldsmith tune` of a nested spec: three real trials of the smallest reasoner, by the names of the spec."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import forked_study
import pytest
import yaml
from reasoner_runs import make_world

from worldsmith.cli.main import main
from worldsmith.config.load import load

SPEC = """\
train:
  epoch: 1
  train_batch_per_replica: 3
  optm_lr: 1.0e-5
  optm_warmup_steps: 0
  param_dtype: float32
  compile: false
  train_policy: {type: sft, mini_batch: 3}
policy:
  model_name_or_path: WORLD/model
  model_max_length: 512
  parallelism: {tp_size: 1}
  lora: {r: 4, lora_alpha: 4, target_modules: [q_proj]}
validation: {enable: true, freq: 1}
custom:
  train_dataset: {annotation_path: WORLD/data/annotations.json}
  val_dataset: {annotation_path: WORLD/data/annotations.json}
  vision: {nframes: 4}
results_dir: WORLD/results
"""
KEYS = {
    *("train.epoch", "train.optm_lr", "train.optm_decay_type"),
    *("policy.lora.r", "policy.lora.lora_alpha", "policy.lora.lora_dropout"),
}
SEARCH = ["--trials=3", "--search=train.epoch=1..2", "--search=trainer.seed=1|2"]
RUN = ["checkpoint.init=scratch", "trainer.callbacks.run_page.enabled=false"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_world(tmp_path_factory.mktemp("world"))
    annotations = folder / "data/annotations.json"
    records = [{**record, "video_fps": 8} for record in json.loads(annotations.read_text())]
    annotations.write_text(json.dumps(records))
    (folder / "spec.yaml").write_text(SPEC.replace("WORLD", str(folder)))
    return folder


@pytest.fixture(scope="module")
def study(world: Path) -> Path:
    said = world / "said.txt"
    assert forked_study.tune(["--spec", str(world / "spec.yaml"), *RUN, *SEARCH], said) == 0, said.read_text()
    return world / "results/tune"


@pytest.mark.slow
def test_three_trials_are_runs_of_the_spec_and_the_best_can_be_pasted(
    world: Path, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = world / "said.txt"
    lines: list[dict[str, Any]] = [json.loads(line) for line in (study / "trials.jsonl").read_text().splitlines()]
    assert [line["state"] for line in lines] == ["complete"] * 3
    assert lines[0]["settings"] == {}
    for line in lines[1:]:
        settings = line["settings"]
        assert settings.keys() == KEYS | {"trainer.seed"}
        run = yaml.safe_load((study / line["run"] / "config.yaml").read_text())
        steps = 2 * settings["train.epoch"]  # 6 records, 3 a step
        assert (run["trainer"]["max_iter"], run["scheduler"]["cycle_lengths"]) == (steps, [steps])
        assert run["optimizer"]["lr"] == settings["train.optm_lr"]
        assert run["model"]["config"]["lora_rank"] == settings["policy.lora.r"]
        assert run["model"]["config"]["lora_alpha"] == settings["policy.lora.lora_alpha"]
        assert run["model"]["config"]["lora_dropout"] == settings["policy.lora.lora_dropout"]
        assert run["trainer"]["seed"] == settings["trainer.seed"]
        assert len(line["validations"]) == steps

    (command,) = (line for line in said.read_text().splitlines() if line.startswith("next: "))
    best = json.loads((study / "best.json").read_text())
    words = shlex.split(command)[2:]
    assert words[:3] == ["train", "--spec", str(world / "spec.yaml")]
    assert set(best["words"]) <= set(words)
    assert main([*words, "--dryrun"] if "--" not in words else [*words[:3], "--dryrun", *words[3:]]) == 0
    capsys.readouterr()
    spec_words, run_words = (
        words[3 : words.index("--")],
        words[words.index("--") + 1 :],
    )
    pasted = load(str(world / "spec.yaml"), run_words, spec_words=spec_words).tree
    assert pasted == load(str(study / "best.yaml")).tree


@pytest.mark.slow
def test_trials_of_two_processes_start_from_the_weights_of_a_parent(
    world: Path,
    study: Path,
    unseen: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    support = str(Path(forked_study.__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([support, *filter(None, [os.environ.get("PYTHONPATH")])]))
    parent, again = study / "trials/0000", tmp_path / "s"
    spec = ["--spec", str(world / "spec.yaml"), "num_gpus=2", *RUN[1:], "--parent", str(parent), "-o", str(again)]
    final = ["--final-data", f"custom.val_dataset.annotation_path={unseen}"]
    words = [*spec, "--trials", "2", "--marked", "false", "--search", "train.optm_lr=1e-5|2e-5", *final]
    assert main(["tune", *words, "--dryrun"]) == 0
    assert "processes   2 for each trial" in capsys.readouterr().out
    assert forked_study.tune(words, tmp_path / "said.txt") == 0, (tmp_path / "said.txt").read_text()
    said = (tmp_path / "said.txt").read_text()
    start = next((parent / "checkpoints").glob("iter_*"))
    for line in map(json.loads, (again / "trials.jsonl").read_text().splitlines()):
        run = again / line["run"]
        assert yaml.safe_load((run / "config.yaml").read_text())["checkpoint"]["load_path"] == str(start)
        assert yaml.safe_load((run / "job_env.yaml").read_text())["world_size"] == 2
    assert "on data that no trial has seen: " in said
    assert f"next: worldsmith launch --nproc-per-node 2 train --spec {world / 'spec.yaml'} num_gpus=2 " in said


def test_what_stops_a_training_is_found_before_trial_0(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record without `video_fps`: by the dry run, and by the command."""
    records = json.loads((world / "data/annotations.json").read_text())
    del records[1]["video_fps"]
    broken = world / "data/broken.json"
    broken.write_text(json.dumps(records))
    words = [
        str(world / "spec.yaml"),
        f"custom.train_dataset.annotation_path={broken}",
        *RUN,
        "-o",
        str(tmp_path / "s"),
    ]
    assert main(["tune", *words, "--dryrun"]) == 2
    said = capsys.readouterr()
    assert "trial 0     the baseline" in said.out
    assert "video_fps" in said.err
    assert "chat1" in said.err
    assert forked_study.tune(words, tmp_path / "said.txt") == 2
    assert "video_fps" in (tmp_path / "said.txt").read_text()
    assert not (tmp_path / "s").exists()


@pytest.fixture(scope="module")
def unseen(world: Path) -> Path:
    """Two records, without clips, that no trial sees."""
    questions = ("Does water flow upwards?", "Does a stone float?")
    turns = [[{"from": "human", "value": text}, {"from": "gpt", "value": "no"}] for text in questions]
    records = [{"id": f"unseen{number}", "conversations": turn} for number, turn in enumerate(turns)]
    (world / "data/unseen.json").write_text(json.dumps(records))
    return world / "data/unseen.json"


def test_final_data_are_named_by_keys_of_the_spec_or_fields_of_the_run(
    world: Path, unseen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", str(world / "spec.yaml"), *RUN, "-o", str(tmp_path / "s"), "--dryrun"]
    for named in (
        f"custom.val_dataset.annotation_path={unseen}",
        f"dataset.path={unseen}",
        f"dataloader_val.dataset.path={unseen}",
    ):
        assert main([*words, "--final-data", named]) == 0, capsys.readouterr().err
        assert f"final data  {named}" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("nonsense.x=1", "has no key 'nonsense'"),
        ("custom.val_dataset.annotation_path=WORLD/gone.json", "gone.json"),
        ("custom.val_dataset.annotation_path=WORLD/data/annotations.json", "are also in"),
        ("dataset.path=WORLD/data/annotations.json", "on which the trials are trained"),
    ],
)
def test_final_data_that_cannot_be_are_refused_by_the_dry_run_as_by_the_command(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str, message: str
) -> None:
    words = [
        str(world / "spec.yaml"),
        *RUN,
        "-o",
        str(tmp_path / "s"),
        "--final-data",
        named.replace("WORLD", str(world)),
    ]
    assert main(["tune", *words, "--dryrun"]) == 2
    refusal = capsys.readouterr().err
    assert message in refusal
    assert forked_study.tune(words, tmp_path / "said.txt") == 2
    assert refusal.splitlines()[-1] in (tmp_path / "said.txt").read_text()
    assert not (tmp_path / "s").exists()
