"""The head of a run's page: what was trained, on what, how long; and the order of the sections below it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from run_folders import add_samples, write_lines, write_run

from worldsmith.monitor.page.run_files import read_run
from worldsmith.monitor.page.run_page import page_of
from worldsmith.monitor.page.samples import PageBudget


def sections_of(folder: Path) -> dict[str, str]:
    """The words of each section, in the order of the page."""
    page = page_of(read_run(folder), PageBudget(folder))
    return {s.name: " ".join(re.sub(r"<[^>]*>", " ", str(s.html)).split()) for s in page.sections}


def write_setup(folder: Path) -> None:
    with (folder / "config.yaml").open("a") as file:
        file.write("model: {name: toy}\nscheduler: {type: a.b.LambdaCosine, warm_up_steps: [10]}\n")
        file.write("dataloader_train: {dataset: {path: /data/my_clips}}\n")
    (folder / "param_count").mkdir()
    (folder / "param_count/parameters.json").write_text('{"parameters": 4200000, "trained": 52500, "parts": {}}')
    (folder / "data_report.json").write_text('{"train": {"records": 1024}, "val": {"records": 16}}')
    git = "git: {commit: 9915fc011a86f34a8fc6b54b9292a34fb002166a, branch: main, changed_files: [a.py]}\n"
    (folder / "job_env.yaml").write_text(git)
    write_lines(folder / "metrics.jsonl", [{"step": 40, "loss": 1.0, "samples": 8, "tokens": 1256}])
    status = {"state": "finished", "step": 40, "max_iter": 40}
    times = {"started": "2026-01-01T00:00:00+00:00", "updated": "2026-01-01T01:02:00+00:00"}
    (folder / "status.json").write_text(json.dumps({**status, **times}))


def test_the_head_names_model_settings_data_commit_and_duration(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    write_setup(folder)
    overview = sections_of(folder)["overview"]
    assert "Model toy 4.2M parameters, 1.25 % trained" in overview
    assert "Learning rate 0.001 LambdaCosine, 10 warm-up steps" in overview
    assert "Last batch 8 samples 1,256 tokens per step" in overview
    assert "Data my_clips 1,024 clips, 16 for validation" in overview
    assert "Commit 9915fc011a main, 1 changed file" in overview
    assert "Duration 1 h 2 min" in overview


def test_the_head_of_a_reasoner_counts_records_and_names_the_datasets(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    write_setup(folder)
    config = (folder / "config.yaml").read_text().replace("task: vfm", "task: vlm")
    mixed = "{dataset: {datasets: {a: {path: /data/scores}, b: {path: /data/scores}, c: {path: /data/questions}}}}"
    config = config.replace("{dataset: {path: /data/my_clips}}", mixed)
    (folder / "config.yaml").write_text(config)
    assert "Data scores, questions 1,024 records, 16 for validation" in sections_of(folder)["overview"]


def test_the_head_omits_what_is_not_known(tmp_path: Path) -> None:
    overview = sections_of(write_run(tmp_path))["overview"]
    for name in ("Model", "Batch", "Data", "Commit", "Duration"):
        assert f" {name} " not in overview, name
    assert "Learning rate 0.001" in overview


def test_a_broken_parameter_count_is_reported(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    write_setup(folder)
    (folder / "param_count/parameters.json").write_text("[")
    overview = sections_of(folder)["overview"]
    assert "param_count/parameters.json cannot be read" in overview
    assert "Model toy" in overview


def test_samples_stand_before_the_curves_if_there_are_any(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    names = list(sections_of(folder))
    assert names.index("curves") < names.index("samples")
    add_samples(folder)
    (folder / "evaluation").mkdir()
    (folder / "evaluation/metrics.json").write_text('{"task": "binary", "accuracy": 0.5}')
    assert list(sections_of(folder))[:4] == ["overview", "samples", "evaluation", "curves"]


def test_the_only_evaluation_has_no_second_heading(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    for number, name in enumerate(("evaluation", "unseen"), 1):
        (folder / name).mkdir()
        (folder / name / "metrics.json").write_text('{"task": "binary", "accuracy": 0.5}')
        page = page_of(read_run(folder), PageBudget(folder))
        html = next(str(section.html) for section in page.sections if section.name == "evaluation")
        assert html.count("<h3>") == (0 if number == 1 else 2)


def test_data_that_are_all_alike_have_no_bars(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    features = {"size": {"labels": ["64x64"], "counts": [16]}, "seconds": {"labels": ["1", "2"], "counts": [3, 4]}}
    (folder / "data_report.json").write_text(json.dumps({"train": {"records": 16, "features": features}}))
    page = page_of(read_run(folder), PageBudget(folder))
    assert "size 64x64 in all 16" in sections_of(folder)["data"]
    assert next(str(s.html) for s in page.sections if s.name == "data").count("<meter") == 2
