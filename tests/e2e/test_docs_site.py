"""The documentation site builds without a warning, and the commands of its pages run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import moving_gradient, write_mp4

from worldsmith.cli.commands import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"
RUN = (
    "start", "tutorial_video", "tutorial_reasoner", "tutorial_lora", "tutorial_export",
    "one_gpu", "eight_gpus", "debug_memory", "from_torchtitan", "from_diffusers",
)  # fmt: skip
"""Pages whose commands are executed here; other test files execute those of the other pages."""
SLOW = {"tutorial_reasoner", "tutorial_lora"}
"""Pages whose commands other tests of the default run execute at a smaller size."""


def blocks(page: str, language: str) -> str:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return "".join(re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.timeout(600)
def test_the_site_builds_without_warnings_and_contains_every_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    for page in sorted(DOCS.glob("*.md")):
        assert page.stem == "index" or f'href="{page.stem}.html"' in index, page.name


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page for page in RUN])
def test_the_commands_of_a_page(page: str, tmp_path: Path, programs: str) -> None:
    """Trainings of 20 steps end after three."""
    for index, name in enumerate(("my_videos/horse", "my_videos/train", "my_videos/val/kitten")):
        write_mp4(tmp_path / f"{name}.mp4", moving_gradient(index, 17, 64, 96), 8)
        (tmp_path / f"{name}.txt").write_text(f"Gradient {index}.")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{programs}:{os.environ['PATH']}"}
    for name in ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT", "WORLDSMITH_LATENT_CACHE", "DATASET_PATH"):
        environment.pop(name, None)
    script = blocks(page, "bash").replace("trainer.max_iter=20 ", "trainer.max_iter=3 ")
    if python := blocks(page, "python"):
        script += f"python - <<'END'\n{python}END\n"
    assert script
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", sorted(page.stem for page in DOCS.glob("*.md") if page.stem != "commands"))
def test_commands_that_are_only_shown_exist(page: str) -> None:
    for line in blocks(page, "shell").splitlines():
        words = line.partition("#")[0].split()
        if "worldsmith" in words[:1]:
            assert words[1] in COMMANDS or words[1].startswith("-"), line
        for script in re.findall(r"\bexamples/\S+\.(?:sh|toml)", line):
            assert (DOCS.parent / script).is_file(), line
