"""`worldsmith tune`, with real runs of the toy family: what it finds, and that being killed changes nothing of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forked_study
import pytest
import torch
import yaml
from toy_runs import VAL_ROWS, make_world, read_validations

from worldsmith.cli.main import main
from worldsmith.config.load import load
from worldsmith.monitor.lineage import read_lineage
from worldsmith.tools.tune.final import FinalData
from worldsmith.tools.tune.source import Source

FINAL_ROWS = "final_rows.txt"
RUN = [
    *("trainer.run_validation=true", "trainer.validation_iter=2", "dataloader_val=RowLoader", "optimizer.fused=false"),
    *("dataloader_val.num_workers=0", "dataloader_val.max_samples_per_batch=2", "optimizer.lr=1e-5"),
    "checkpoint.save_iter=2",
]
SEARCH = ["--trials", "4", "--search", "optimizer.lr=log:1e-5..1", "--pruner", "asha"]
MARGIN = 0.7
"""The held-out loss of the best rate is less than so much of that of the bad baseline."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_world(tmp_path_factory.mktemp("world"))
    numbers = torch.randn(5, 4, generator=torch.Generator().manual_seed(9)).tolist()
    lines = (" ".join(f"{number:.4f}" for number in [*row, *(2 * n for n in row)]) for row in numbers)
    (folder / FINAL_ROWS).write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture(scope="module", autouse=True)
def _rows(world: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_ROWS", str(world / "rows.txt"))
        yield


def words(world: Path, study: Path, *more: str) -> list[str]:
    final = ["--final-data", f"dataset.path={world / FINAL_ROWS}"]
    validation = f"dataloader_val.dataset.path={world / VAL_ROWS}"
    return ["toy", *RUN, validation, "-o", str(study), *SEARCH, *final, *more]


def lines(study: Path) -> list[dict[str, Any]]:
    """The trials, apart from how long they took."""
    found = [json.loads(line) for line in (study / "trials.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


@pytest.fixture(scope="module")
def study(world: Path) -> Path:
    """One that nothing has disturbed."""
    said = world / "said.txt"
    assert forked_study.tune(words(world, world / "study"), said) == 0, said.read_text()
    return world / "study"


def test_it_finds_a_better_rate_which_is_better_on_unseen_data_too(study: Path, world: Path) -> None:
    best = json.loads((study / "best.json").read_text())
    assert best["final"]["best"] < MARGIN * best["final"]["as_it_is"]
    assert best["value"] < MARGIN * best["as_it_is"]
    first, *others = lines(study)
    assert (first["trial"], first["settings"], first["state"]) == (0, {}, "complete")
    assert {line["state"] for line in others} == {"complete", "pruned"}
    assert all(len(line["validations"]) == 4 for line in [first, *others] if line["state"] == "complete")
    for line in [first, *others]:  # each is a run of its own
        run = study / line["run"]
        rate = yaml.safe_load((run / "config.yaml").read_text())["optimizer"]["lr"]
        assert rate == line["settings"].get("optimizer.lr", 1e-5)
        assert [v[1] for v in read_validations(run)][: len(line["validations"])] == line["validations"]
    kept = {line["trial"] for line in lines(study) if (study / line["run"] / "checkpoints").exists()}
    assert kept == {0, best["trial"]}
    tree = load(str(study / "best.yaml")).tree
    assert tree.optimizer.lr == best["settings"]["optimizer.lr"]
    assert tree.job.name == "toy"
    record = read_lineage(study / "lineage.json")
    assert [record.change(o, study / o["path"]) for o in record.outputs] == [None] * 4
    assert "on data that no trial has seen" in (world / "said.txt").read_text()


def test_asked_to_stop_and_killed_it_goes_on_to_the_same_trials(study: Path, world: Path, tmp_path: Path) -> None:
    again, said = tmp_path / "study", tmp_path / "said.txt"
    fewer = words(world, again, "--trials=2")
    assert forked_study.tune(fewer, said, deadly=(1, 4), stop=True) == 75, said.read_text()
    assert (again / "trials/0001/checkpoints/latest_checkpoint.txt").read_text().strip() == "iter_000000004"
    assert lines(again) == lines(study)[:1]
    assert forked_study.tune(words(world, again), said, deadly=(3, 6)) == -9
    assert lines(again) == lines(study)[:3]
    assert forked_study.tune(words(world, again), said) == 0, said.read_text()
    assert lines(again) == lines(study)
    for number in (1, 3):  # they went on in their folders
        launches = yaml.safe_load((again / f"trials/{number:04d}/launch_info.yaml").read_text())
        assert len(launches["earlier_launches"]) == 1


def test_the_final_figure_is_that_of_the_stored_weights(study: Path, world: Path, tmp_path: Path) -> None:
    """On the data of the validation it is what the trial itself has found, of live and averaged weights."""
    best = json.loads((study / "best.json").read_text())
    run = [*RUN, f"dataloader_val.dataset.path={world / FINAL_ROWS}"]
    final = FinalData(Source("toy", run), [f"dataset.path={world / VAL_ROWS}"], "val/loss")
    found = final.validated(best["words"], study / best["run"], tmp_path / "final")
    step, live, averaged, _ = read_validations(study / best["run"])[-1]
    assert (step, found["val/loss"], found["val_ema/loss"]) == (8, live, averaged)


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["all", "trained", "best"])
def test_so_it_is_of_adapters_and_of_the_best_weights(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """Also where a checkpoint holds what was trained alone."""
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path))
    given = [*RUN, f"dataloader_val.dataset.path={world / VAL_ROWS}", "optimizer.lr=0.1"]
    assert main(["train", "toy", "--", *given, "job.name=base"]) == 0
    base = f"checkpoint.load_path={tmp_path}/tests/toy/base"
    adapters = ["model.config.lora_enabled=true", "model.config.lora_target_modules='layers.0,layers.1'", base]
    kinds = {"all": adapters, "trained": [*adapters, "checkpoint.save_weights=trained"]}
    given += kinds.get(kept, ["checkpoint.keep_best=val_ema/loss", "checkpoint.keep_latest_k=1", "optimizer.lr=0.9"])
    assert main(["train", "toy", "--", *given, "job.name=run"]) == 0
    run = tmp_path / "tests/toy/run"
    found = FinalData(Source("toy", given), [], "val/loss").validated([], run, tmp_path / "final")
    validations = read_validations(run)
    expected = min(validations, key=lambda v: v[2]) if kept == "best" else validations[-1]
    assert (found["val/loss"], found["val_ema/loss"]) == expected[1:3]


def test_final_data_that_the_trials_see_are_refused_before_the_first(world: Path, tmp_path: Path) -> None:
    for rows, what in ((VAL_ROWS, "measured"), ("rows.txt", "trained")):
        given = [word.replace(FINAL_ROWS, rows) for word in words(world, tmp_path / "study")]
        assert forked_study.tune(given, tmp_path / "said.txt") == 2
        assert f"on which the trials are {what}" in (tmp_path / "said.txt").read_text()
    assert not (tmp_path / "study").exists()


def test_a_trial_that_fails_has_a_reason_and_no_score(world: Path, tmp_path: Path) -> None:
    """A table of rates that fits no parameter is found out when the run starts."""
    again, said = tmp_path / "study", tmp_path / "said.txt"
    given = [word for word in words(world, again) if word not in SEARCH]
    search = ["--trials=4", "--keep=optimizer.lr", "--search=optimizer.lr_multipliers={}|{nothing: 2.0}|{bias: 2.0}"]
    assert forked_study.tune([*given, *search], said) == 0, said.read_text()
    found = lines(again)
    assert len(found) == 3  # there is nothing else to draw
    (failed,) = (line for line in found if line["state"] == "failed")
    assert failed["value"] is None
    assert "'nothing'" in failed["reason"]
    trials = json.loads((again / "best.json").read_text())["trials"]
    assert (trials["complete"], trials["failed"]) == (2, 1)


@pytest.mark.slow
def test_a_run_that_diverges_as_it_is_has_no_score_and_others_have(world: Path, tmp_path: Path) -> None:
    again, said = tmp_path / "study", tmp_path / "said.txt"
    given = [word for word in words(world, again) if word not in SEARCH and "final" not in word]
    more = ["optimizer.lr=1e38", "trainer.max_iter=2", "--trials=2", "--search=optimizer.lr=log:1e-3..1e-2"]
    assert forked_study.tune([*given, *more], said) == 0, said.read_text()
    assert [(line["state"], line["reason"]) for line in lines(again)] == [
        ("failed", "the metric is not finite"),
        ("complete", None),
    ]
    best = json.loads((again / "best.json").read_text())
    assert (best["trial"], best["as_it_is"], best["final"]) == (1, None, None)
    assert "baseline: none" in said.read_text()


@pytest.mark.slow
def test_two_at_once_are_the_same_trials_again_also_after_a_kill(world: Path, tmp_path: Path) -> None:
    """Whichever of the two ends first."""
    one, two, said = tmp_path / "one", tmp_path / "two", tmp_path / "said.txt"
    assert forked_study.tune(words(world, one, "--parallel=2"), said) == 0, said.read_text()
    assert forked_study.tune(words(world, two, "--parallel=2"), said, deadly=(2, 3)) == -9
    assert len(lines(two)) < 3
    assert forked_study.tune(words(world, two, "--parallel=2"), said) == 0, said.read_text()
    assert lines(two) == lines(one)
    assert [line["trial"] for line in lines(one)] == [0, 1, 2, 3]
