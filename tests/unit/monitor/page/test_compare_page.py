"""Several runs on one page."""

from __future__ import annotations

import re
from pathlib import Path

from run_folders import add_samples, write_run

from worldsmith.monitor.page.compare_page import comparison, write_comparison
from worldsmith.monitor.page.run_files import read_run
from worldsmith.monitor.page.samples import Place


def test_curves_configs_and_samples_stand_beside_each_other(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, "first"), write_run(tmp_path, "second", steps=30)]
    config = folders[1] / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.001", "lr: 0.002"))
    for folder, accuracy in zip(folders, (0.5, 0.75), strict=True):
        add_samples(folder)
        (folder / "evaluation").mkdir()
        (folder / "evaluation/metrics.json").write_text(f'{{"task": "binary", "accuracy": {accuracy}}}')
    page = comparison([read_run(folder) for folder in folders], Place(tmp_path))
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
    assert "Evaluation figure first second accuracy 0.5 0.75" in sections["evaluation"]
    html = write_comparison(folders, tmp_path / "compare.html").read_text()
    assert "<title>2 runs</title>" in html


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / place) for place in ("a", "b")] + [write_run(tmp_path / "b", "second")]
    page = comparison([read_run(folder) for folder in [*folders, folders[2]]], Place(tmp_path))
    names = [line["name"] for line in page.charts[0]["lines"]]
    assert names[:2] == ["a/shapes/tests/first", "b/shapes/tests/first"]
    assert names[2:] == [str(folders[2])] * 2  # one run, given twice
