"""The charts of a study: one without values is left out, and the page says why."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from worldsmith.config.load import load
from worldsmith.tools.tune.page import write_page
from worldsmith.tools.tune.space import Space

SEARCH = ["optimizer.lr=log:1e-6..1e-3", "scheduler=LambdaCosine|LambdaLinear"]


def trial(number: int, state: str, value: float | None, **settings: Any) -> dict[str, Any]:
    return {
        "trial": number, "state": state, "value": value, "settings": settings, "words": [], "reason": None,
        "refused": [], "seconds": 1.0, "run": f"trials/{number:04d}",
    }  # fmt: skip


def write_study(folder: Path, lines: list[dict[str, Any]]) -> tuple[list[str], str]:
    """Returns the charts of the page by name, and the words of their section."""
    page = write_page(
        folder / "tune.html",
        name="rates",
        space=Space(load("videophy2_nano_tiny").tree, SEARCH),
        lines=lines,
        facts={"trial": None},
        rules={"metric": "val/loss", "direction": "min", "source": "videophy2_nano_tiny"},
        importances={},
        command="",
        at_work=False,
    )
    html = page.read_text()
    (data,) = re.findall(r'<script type="application/json" id="page-data">(.*?)</script>', html, flags=re.S)
    (section,) = re.findall(r'<section id="study_charts".*?</section>', html, flags=re.S)
    text = " ".join(re.sub(r"<[^>]*>", " ", section).split())
    return [chart["id"] for chart in json.loads(data)["charts"]], text


def test_without_values_there_are_no_charts(tmp_path: Path) -> None:
    charts, text = write_study(tmp_path, [trial(0, "failed", None), trial(1, "pruned", 2.0, **{"optimizer.lr": 1e-4})])
    assert charts == []
    assert text.count("No chart") == 1
    assert (
        "No chart is shown, because each chart needs at least 2 completed trials and there are 0: val/loss by trial, "
        "val/loss over scheduler, val/loss over optimizer.lr, all settings." in text
    )


def test_one_complete_trial_makes_no_chart(tmp_path: Path) -> None:
    charts, text = write_study(tmp_path, [trial(0, "complete", 2.0)])
    assert charts == []
    assert "and there is 1: val/loss by trial" in text


@pytest.mark.parametrize("same", [True, False])
def test_a_setting_that_no_trial_changed_has_no_chart(same: bool, tmp_path: Path) -> None:
    rates = [1e-4, 1e-4 if same else 1e-5]
    lines = [
        trial(number, "complete", 2.0 + number, **{"optimizer.lr": rate, "scheduler": name})
        for number, (rate, name) in enumerate(zip(rates, ("LambdaCosine", "LambdaLinear"), strict=True))
    ]
    charts, text = write_study(tmp_path, lines)
    over = [] if same else ["slice optimizer.lr"]
    assert charts == ["history", "slice scheduler", *over, "across"]
    told = "all completed trials have the same value of the setting: val/loss over optimizer.lr." in text
    assert told is same
