"""What the page of a run says of its plan: planned and measured figures that stand here."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from run_folders import EVIL, write_lines, write_run

from worldsmith.monitor.page.plan_check import format_checks, format_plan, list_advice, plan_checks
from worldsmith.monitor.page.run_files import RunFiles, read_run
from worldsmith.monitor.page.run_page import page_of, write_page
from worldsmith.monitor.page.samples import PageBudget

GIB = 2**30
PHASES = [{"name": "forward", "peak": 8 * GIB}, {"name": "backward", "peak": 10 * GIB}]
PLAN: dict[str, Any] = {
    "gpus": 2,
    "gpu": {"name": "h100-80", "peak_flops": 1e15},
    "data": "the largest of the first 8 batches of clips",
    "quick": {"checkpoint_bytes": 1000},
    "memory": {"peak_bytes": 10 * GIB, "needed_bytes": 12 * GIB, "gpu_bytes": 79 * GIB, "verdict": "fits"},
    "step": {
        "tokens": 5000,
        "work": {"model_flops": 4e14, "phases": PHASES},
    },
    "seconds": {"total": {"fast": 1.0, "slow": 2.0}},
}


def run_of(root: Path, *, plan: Any = PLAN, gpus: int = 2, processes: int = 2, **figures: float) -> RunFiles:
    """A run as planned in every figure, but for those that are given: 20 steps, the first of them much slower."""
    folder = write_run(root, str(len(list(root.glob("*/*/*")))))
    saved = folder / "checkpoints/iter_000000020/model"
    saved.mkdir()
    (saved / "weights").write_bytes(bytes(1000))
    length = figures.get("step_seconds", 1.5)
    line = {
        "step_seconds": length,
        "tokens_per_second": 5000 / length,
        "model_flops_share": 0.3,
        "data_wait_share": 0.25,
        "peak_memory_bytes": 11 * GIB,
        "memory_before_bytes": GIB,
        **figures,
    }
    write_lines(
        folder / "metrics.jsonl", [{"step": n, **line, "step_seconds": length + 60 * (n < 3)} for n in range(1, 21)]
    )
    (folder / "plan.json").write_text(json.dumps(plan))
    about = {"world_size": processes, "torch": {"devices": ["NVIDIA H100"] * gpus}}
    (folder / "job_env.yaml").write_text(json.dumps(about))
    return read_run(folder)


def judged(run: RunFiles) -> dict[str, tuple[float | None, bool | None]]:
    return {c.kind: (c.ratio and round(c.ratio, 3), c.is_good) for c in plan_checks(run)}


def test_a_run_as_planned(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    checks = plan_checks(run)
    assert judged(run) == dict.fromkeys(("memory", "seconds", "tokens", "share", "checkpoint"), (1.0, True))
    assert list(list_advice(run, checks)) == []
    assert format_checks(checks) == (
        "peak memory 10 GiB, planned 10 GiB; seconds of a step 1.5 s, planned 1 s to 2 s; tokens of a step 5,000, "
        "planned 5,000; fraction of the GPUs' peak 30%, planned 20% to 40%; a checkpoint 1,000 B, planned 1,000 B"
    )
    assert format_plan(PLAN) == "peak memory 10 GiB, with margins 12 GiB of 79 GiB: fits; a step 1 s to 2 s"


@pytest.mark.parametrize(
    ("figures", "kind", "ratio", "good"),
    [
        ({"peak_memory_bytes": 11.9 * GIB}, "memory", 1.09, True),
        ({"peak_memory_bytes": 12.2 * GIB}, "memory", 1.12, False),
        ({"peak_memory_bytes": 9.8 * GIB}, "memory", 0.88, False),
        ({"step_seconds": 2.3}, "seconds", 1.15, True),
        ({"step_seconds": 2.6}, "seconds", 1.3, False),
        ({"step_seconds": 0.7}, "seconds", 0.7, False),
        ({"model_flops_share": 0.1}, "share", 0.5, False),
    ],
)
def test_what_is_far_from_the_plan_is_marked_with_what_to_look_at(
    tmp_path: Path, figures: dict[str, float], kind: str, ratio: float, good: bool
) -> None:
    run = run_of(tmp_path, **figures)
    assert judged(run)[kind] == (ratio, good)
    told = list(list_advice(run, plan_checks(run)))
    assert len(told) == (not good)
    assert all(f"{ratio:.2f} times the planned value: " in line for line in told)
    if figures == {"step_seconds": 2.6}:
        assert "waiting for data (25% of a step)" in told[0]


def test_other_tokens_explain_other_seconds(tmp_path: Path) -> None:
    run = run_of(tmp_path, step_seconds=0.5, tokens_per_second=5000)
    seconds, tokens = list_advice(run, plan_checks(run))
    assert seconds.endswith("times the planned tokens, for which about 0.5 s to 1 s would be expected.")
    assert tokens.endswith("memory and seconds were planned with: the largest of the first 8 batches of clips.")


def test_without_a_gpu_little_memory_is_not_judged(tmp_path: Path) -> None:
    assert judged(run_of(tmp_path, gpus=0))["memory"] == (1.0, True)
    small = {**PLAN, "memory": {**PLAN["memory"], "peak_bytes": GIB // 4}, "seconds": None}
    found = judged(run_of(tmp_path, gpus=0, plan=small))
    assert found["memory"] == (40.0, None)
    assert found.keys() == {"memory", "tokens", "checkpoint"}


def test_a_plan_for_other_gpus_is_not_judged(tmp_path: Path) -> None:
    run = run_of(tmp_path, processes=8)
    assert {good for _, good in judged(run).values()} == {None}
    html = write_page(run.folder).read_text()
    assert "The plan is for 2 GPUs, but this run has 8 processes. The values are not compared." in html


def section_text(run: RunFiles) -> str:
    page = page_of(run, PageBudget(run.folder))
    (html,) = (section.html for section in page.sections if section.name == "plan")
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", str(html))).split())


def test_the_section(tmp_path: Path) -> None:
    text = section_text(run_of(tmp_path, peak_memory_bytes=13 * GIB))
    assert text.startswith(
        "Plan against measured Planned for 2 × h100-80; data of a step: the largest of the first 8 batches of clips."
    )
    assert "Peak memory tensors on the GPU 10 GiB 12 GiB 1.20 check" in text
    assert "waiting for data included 1 s to 2 s 1.5 s within as planned" in text
    assert "by phase backward 10 GiB forward 8 GiB with margins 12 GiB measured 12 GiB" in text


def test_a_run_that_has_measured_nothing_yet_and_one_without_a_plan(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (run.folder / "metrics.jsonl").unlink()
    (run.folder / "checkpoints").rename(tmp_path / "gone")
    assert section_text(read_run(run.folder)).count("not measured yet") == 4
    (run.folder / "plan.json").unlink()
    assert "Plan against measured" not in write_page(run.folder).read_text()


@pytest.mark.parametrize(
    "plan", [{"gpu": EVIL, "step": [], "data": EVIL}, {"memory": None, "seconds": {"total": 3}}, []]
)
def test_a_broken_plan_does_not_break_the_page(tmp_path: Path, plan: Any) -> None:
    assert EVIL not in write_page(run_of(tmp_path, plan=plan).folder).read_text()
