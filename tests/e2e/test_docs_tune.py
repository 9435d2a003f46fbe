"""The commands, words and numbers of docs/tune.md; slow: they run on the tiny reasoner, killed in the middle."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from worldsmith.cli.main import main
from worldsmith.config.load import load
from worldsmith.files.locks import in_use
from worldsmith.tools.tune import strategy, trials
from worldsmith.tools.tune.final import FinalData
from worldsmith.tools.tune.space import Space
from worldsmith.tools.tune.tune import Tune

PAGE = Path(__file__).parents[2] / "docs" / "tune.md"
TEXT = PAGE.read_text(encoding="utf-8")
SPECS = TEXT.partition("### Of a spec")[2].partition("\n## ")[0]
BAD, MARGIN = 1e-6, 0.8
"""The learning rate of the baseline, and the share of its held-out loss below which that of the best trial is."""
SMALL = {
    "--clips 60 --val-clips 20": "--clips 8 --val-clips 4",
    "--clips 1 --val-clips 20": "--clips 1 --val-clips 4",
    "trainer.max_iter=120 trainer.validation_iter=30": "trainer.max_iter=24 trainer.validation_iter=6 "
    f"scheduler.warm_up_steps=[2] dataloader_train.max_samples_per_batch=6 checkpoint.save_iter=6 optimizer.lr={BAD} "
    "trainer.callbacks.EveryNDrawSample.enabled=false",
    "--trials 12": "--trials 5",
}


def script(number: int = 0) -> list[list[str]]:
    """The commands of a block of the page, without the shell's own."""
    block = re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.M | re.S)[number]
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("worldsmith ")]


def test_the_search_is_planned_as_it_stands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATASET_PATH", "data")
    monkeypatch.setattr(Tune, "preflight", lambda self: [])  # without its data
    monkeypatch.setattr(FinalData, "check", lambda self: None)
    (words,) = (words for words in script() if words[0] == "tune")
    assert main([*words, "--dryrun"]) == 0
    said = capsys.readouterr().out
    assert "rates: 12 trials" in said
    assert "optimizer.lr: 1e-05 to 0.01, logarithmic" in said


def test_the_commands_for_a_spec_search_what_the_table_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Tune, "preflight", lambda self: [])  # without its model
    turns = [{"from": "human", "value": "Is it possible?"}, {"from": "gpt", "value": "yes"}]
    Path("data.json").write_text(json.dumps([{"id": str(n), "conversations": turns} for n in range(64)]))
    data = {"annotation_path": "data.json"}
    spec = {
        "train": {"train_policy": {"type": "sft", "mini_batch": 1}, "epoch": 2},
        "policy": {"lora": {"target_modules": "all-linear"}, "parallelism": {"tp_size": 1}},
        "validation": {"enable": True},
        "custom": {"train_dataset": data, "val_dataset": data},
    }
    Path("spec.yaml").write_text(yaml.safe_dump(spec))
    searched = []
    for words in script(1):
        assert main([*words, "--dryrun"]) == 0, capsys.readouterr().err
        said = re.findall(r"^search +([\w.]+): ", capsys.readouterr().out, flags=re.M)
        searched.append(set(said))
    table = re.findall(r"^\| (`\w+\.[\w.`, ]+`) \|", SPECS, flags=re.M)
    keys = set(re.findall(r"`([\w.]+)`", " ".join(table)))
    assert len(keys) >= 6
    assert searched[0] == keys | {"train.train_batch_per_replica"}
    assert searched[1] == keys - {"train.epoch"} | {"optimizer.eps"}


def test_every_word_of_the_table_can_be_searched() -> None:
    section = TEXT.partition("## What is searched")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| `(.*?)` \|", section, flags=re.M)[1:]
    words = [word.replace("\\|", "|").strip('"') for word in rows]
    assert len(words) == 7
    adapted = ["model.config.lora_enabled=true", 'model.config.lora_target_modules="q_proj"']
    tree = load("videophy2_nano_tiny", adapted).tree
    for word in words:
        Space(tree, [word], marked=False)


def test_the_numbers_of_the_guide() -> None:
    config = Tune.Config(source="", out="")
    assert f"`--startup` ({config.startup})" in TEXT
    assert f"`--reduction` ({config.reduction})" in TEXT
    assert f"`--least-validations` ({config.least_validations})" in TEXT
    assert "Five in a row" in TEXT
    assert (trials.FAILURES, config.metric) == (5, "val/loss")
    assert set(strategy.SAMPLERS.__args__) == {"tpe", "random"}  # type: ignore[attr-defined]
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", TEXT):
        assert (PAGE.parent / link).exists(), link


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_good_rate_is_found_for_the_tiny_reasoner_and_again_after_a_kill(tmp_path: Path) -> None:
    text = "\n".join(shlex.join(words) for words in script())
    for whole, small in SMALL.items():
        assert whole in text
        text = text.replace(whole, small)
    train, unseen, tune, again = (shlex.split(line) for line in text.splitlines())
    for words in (train, unseen, tune):
        assert run(tmp_path, words).wait() == 0, said(tmp_path)
    best = json.loads((tmp_path / "rates/best.json").read_text())
    assert best["final"]["best"] < MARGIN * best["final"]["as_it_is"]
    assert best["settings"]["optimizer.lr"] > 10 * BAD

    killed = ["killed" if word == "rates" else word for word in tune]
    process = run(tmp_path, killed)
    checkpoint = tmp_path / "killed/trials/0003/checkpoints/latest_checkpoint.txt"
    while not checkpoint.exists():
        assert process.poll() is None, said(tmp_path)
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(lines(tmp_path / "killed")) == 3
    assert run(tmp_path, killed).wait() == 0, said(tmp_path)
    assert lines(tmp_path / "killed") == lines(tmp_path / "rates")
    assert in_use(tmp_path / "killed/trials/0003") is None

    assert run(tmp_path, [*again, "--", "trainer.max_iter=10", "scheduler.cycle_lengths=[10]"]).wait() == 0
    config = yaml.safe_load((tmp_path / "outputs/train/worldsmith/demo/falling_objects/config.yaml").read_text())
    assert config["optimizer"]["lr"] == best["settings"]["optimizer.lr"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_figure_of_evaluate_is_searched_for_and_measured_on_final_data(tmp_path: Path) -> None:
    train, unseen, tune, _ = script()
    for words in (train, unseen):
        assert run(tmp_path, [*words[:3], "--clips", "4", "--val-clips", "2", *words[7:]]).wait() == 0, said(tmp_path)
    small = ["trainer.max_iter=2", "scheduler.warm_up_steps=[1]", "dataloader_train.max_samples_per_batch=2"]
    figure = [
        "--metric",
        "num_records",
        "--direction",
        "max",
        "--trials",
        "2",
        "--search",
        "optimizer.lr=log:1e-4..1e-3",
    ]
    asked = ["dataset=LlavaDataset", "dataset.path=data/videophy2_val", "max_new_tokens=2"]
    evaluate = [word for setting in asked for word in ("--evaluate", setting)]
    final = ["--final-data", "dataset.path=unseen/videophy2_val", "--final-data", "limit=5"]
    assert run(tmp_path, [*tune[:2], *small, "-o", "asked", *figure, *evaluate, *final]).wait() == 0, said(tmp_path)
    best = json.loads((tmp_path / "asked/best.json").read_text())
    assert [line["value"] for line in lines(tmp_path / "asked")] == [12, 12]
    assert (best["trial"], best["value"]) == (0, 12)
    assert (best["final"]["best"], best["final"]["as_it_is"]) == (5, 5)
    assert (tmp_path / "asked/trials/0001/evaluation/results.json").exists()
    assert not list((tmp_path / "asked").glob("final_*"))


def run(folder: Path, words: list[str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "DATASET_PATH": "data", "OMP_NUM_THREADS": "1"}
    environment.pop("WORLDSMITH_OUTPUT_ROOT", None)
    with (folder / "said.txt").open("ab") as file:
        command = [sys.executable, "-m", "worldsmith", *words]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)


def said(folder: Path) -> str:
    return (folder / "said.txt").read_text()


def lines(study: Path) -> list[dict[str, Any]]:
    """The trials, apart from how long they took."""
    found = [json.loads(line) for line in (study / "trials.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]
