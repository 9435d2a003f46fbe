"""The commands and the Python of the README do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_first_block_names_make_targets_that_exist() -> None:
    targets = re.findall(r"^make (\w+)", blocks("bash")[0], flags=re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / link).exists(), link


@pytest.mark.timeout(600)
def test_fine_tuning_commands_run_and_the_export_loads_in_diffusers(tmp_path: Path) -> None:
    """Runs the README's shell and Python blocks as they stand, on three small clips and with two steps."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shell = blocks("bash")[1]
    assert "trainer.max_iter=30" in shell
    shell = shell.replace("trainer.max_iter=30", "trainer.max_iter=2 dataloader_train.max_sequence_length=1200")
    make_clips = "worldsmith dataset moving-shapes my_clips --clips 3 --val-clips 0 --num-frames 5\n"
    shell = shell.replace("worldsmith generate", "worldsmith generate --steps 2 --num-frames 5")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for name in ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT", "WORLDSMITH_LATENT_CACHE"):
        environment.pop(name, None)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", make_clips + shell],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "my_videos").glob("*.mp4"))
    python = blocks("python")[0] + "\nassert pipeline.transformer.config.hidden_size == 256\n"
    done = subprocess.run([sys.executable, "-c", python], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
