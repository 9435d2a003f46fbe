"""The commands of docs/checkpoints.md run as they stand and print what the page says; its table names real settings."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from worldsmith.checkpoint.run.checkpointer import Checkpointer

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.timeout(300)
def test_the_commands_print_what_the_page_shows(tmp_path: Path, programs: str) -> None:
    ((commands, shown),) = re.findall(r"^```bash\n(.*?)^```\n\n```text\n(.*?)^```", TEXT, flags=re.M | re.S)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{programs}:{os.environ['PATH']}"}
    for name in ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT", "WORLDSMITH_LATENT_CACHE"):
        environment.pop(name, None)
    script = commands.replace("--val-clips 0", "--val-clips 0 --num-frames 5 >/dev/null")
    quick = "trainer.max_iter=2 dataloader_train.max_samples_per_batch=2"
    script, shown = (text.replace("trainer.max_iter=2", quick) for text in (script, shown))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [
        line for line in done.stdout.splitlines() if not line.startswith(("step ", "first step", "samples "))
    ] == shown.splitlines()


def test_the_table_shows_the_defaults() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", TEXT, flags=re.MULTILINE))
    assert len(rows) == 7
    config = Checkpointer.Config(init="scratch")
    words = {None: "null", True: "true", "all": "`all`", "STOP": "`STOP`", 100: "100"}
    assert rows == {name: words[getattr(config, name)] for name in rows}


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", TEXT):
        assert (PAGE.parent / link).exists(), link
