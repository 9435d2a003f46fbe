"""The commands of docs/monitoring.md work as they stand, and its table has every callback."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from worldsmith.cli.main import main
from worldsmith.training.run_config import monitors

PAGE = (Path(__file__).parents[2] / "docs/monitoring.md").read_text(encoding="utf-8")


def test_the_table_has_every_callback_that_watches_with_its_class() -> None:
    table = dict(re.findall(r"^\| `(\w+)` \(`(\w+)`\)", PAGE, flags=re.MULTILINE))
    assert {
        name: type(config).__qualname__.split(".")[0] for name, config in monitors().items()
    }.items() <= table.items()
    assert set(table) - set(monitors()) == {"profiler"}


@pytest.mark.slow
def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", "runs")
    for line in "".join(re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)).splitlines():
        program, *words = shlex.split(line)
        assert program == "worldsmith"
        assert main(words) == 0, line
    (watched,), (best,) = Path("runs").rglob("watched"), Path("runs").rglob("best")
    assert json.loads((watched / "profiler/step_000000002_rank_0.json").read_text())["traceEvents"]
    norms = [json.loads(line) for line in (watched / "norm_monitor/norms.jsonl").read_text().splitlines()]
    assert [line["step"] for line in norms] == [2, 4]
    lines = [json.loads(line) for line in (watched / "metrics.jsonl").read_text().splitlines()]
    shown = set(re.findall(r"`(\w+)`", PAGE[PAGE.index("| metric |") : PAGE.index("| `val/")]))
    conditional = {"lr_groups", "model_flops_share", "devices", "lr", "loss_scale", "failed_drawings", "failed_uploads"}
    conditional |= {"loss_of", "latents", "actions"}  # of robots
    assert shown - set(lines[-1]) <= conditional
    assert all(0 <= float(sigma) <= 0.9 for sigma in lines[-1]["loss_by_noise"])
    named = (best / "checkpoints/best_checkpoint.txt").read_text().strip()
    assert (best / "checkpoints" / named / "model").is_dir()
