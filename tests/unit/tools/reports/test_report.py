"""Several runs on one page."""

from __future__ import annotations

import re
from pathlib import Path

from run_folders import add_samples, write_run

from worldsmith.monitor.page.run_files import read_run
from worldsmith.monitor.page.samples import PageBudget
from worldsmith.tools.reports.report import OPEN_DIFFERENCES, comparison, write_comparison


def test_curves_configs_and_samples_stand_beside_each_other(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, "first"), write_run(tmp_path, "second", steps=30)]
    config = folders[1] / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.001", "lr: 0.002"))
    for folder, accuracy in zip(folders, (0.5, 0.75), strict=True):
        add_samples(folder)
        (folder / "evaluation").mkdir()
        (folder / "evaluation/metrics.json").write_text(f'{{"task": "binary", "accuracy": {accuracy}}}')
    page = comparison([read_run(folder) for folder in folders], PageBudget(tmp_path))
    loss, validation = page.charts[:2]
    assert [(line["run"], line["name"], len(line["x"])) for line in loss["lines"]] == [
        (0, "first", 40),
        (1, "second", 30),
    ]
    assert len(validation["lines"]) == 4
    sections = {section.name: " ".join(re.sub(r"<[^>]*>", " ", section.html).split()) for section in page.sections}
    assert "job. name first second optimizer. lr 0.001 0.002" in sections["differences"]
    assert "trainer" not in sections["differences"]
    assert re.search(r"first · step 40 .*second · step 40", sections["samples"])
    assert "step 20" not in sections["samples"]
    assert "Evaluation metric first second accuracy 0.5 0.75" in sections["evaluation"]
    assert list(sections)[:4] == ["comparison", "differences", "results", "evaluation"]
    assert "training loss 1.04 1.38 best validation loss 1.5 at step 40 1.5 at step 30" in sections["results"]
    html = write_comparison(folders, tmp_path / "compare.html").read_text()
    assert "<title>2 runs</title>" in html


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / place) for place in ("a", "b")] + [write_run(tmp_path / "b", "second")]
    page = comparison([read_run(folder) for folder in [*folders, folders[2]]], PageBudget(tmp_path))
    names = [line["name"] for line in page.charts[0]["lines"]]
    assert names[:2] == ["a/shapes/tests/first", "b/shapes/tests/first"]
    assert names[2:] == [str(folders[2])] * 2  # one run, given twice


def test_a_run_has_one_color_in_tables_and_samples(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, name) for name in ("first", "second")]
    for number, folder in enumerate(folders):
        add_samples(folder)
        config = folder / "config.yaml"
        config.write_text(config.read_text().replace("lr: 0.001", f"lr: {number + 1}"))
        (folder / "evaluation").mkdir()
        (folder / "evaluation/metrics.json").write_text('{"task": "binary", "accuracy": 0.5}')
    page = comparison([read_run(folder) for folder in folders], PageBudget(tmp_path))
    html = {section.name: str(section.html) for section in page.sections}
    for name in ("comparison", "differences", "results", "evaluation"):
        found = re.findall(r'<span class="swatch c(\d)"></span>\s*(\w+)', html[name])
        assert found == [("0", "first"), ("1", "second")], name
    assert re.findall(r'of-run c(\d)".*?<figcaption>(\w+)', html["samples"], flags=re.S) == [
        ("0", "first"),
        ("1", "second"),
    ]


def test_many_changed_settings_are_folded(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, name) for name in ("first", "second")]
    for number, folder in enumerate(folders):
        with (folder / "config.yaml").open("a") as file:
            file.write("".join(f"key{n}: {number}\n" for n in range(OPEN_DIFFERENCES + 2)))
    page = comparison([read_run(folder) for folder in folders], PageBudget(tmp_path))
    html = next(str(section.html) for section in page.sections if section.name == "differences")
    first, rest = html.split("<details")
    assert first.count('<th scope="row">') == OPEN_DIFFERENCES
    assert "3 more" in rest  # job.name is the first
    assert rest.count('<th scope="row">') == 3


def test_results_omit_what_no_run_has(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, name) for name in ("first", "second")]
    page = comparison([read_run(folder) for folder in folders], PageBudget(tmp_path))
    html = next(str(section.html) for section in page.sections if section.name == "results")
    assert "peak memory" not in html
    assert "started" not in html
