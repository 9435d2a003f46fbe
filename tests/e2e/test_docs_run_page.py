"""The commands of docs/run_page.md run as they stand, and so do those that a page gives; its numbers are in use."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from worldsmith.monitor.page import samples, series
from worldsmith.monitor.page.next_steps import next_steps
from worldsmith.monitor.page.run_files import read_run
from worldsmith.monitor.page.status import find_status
from worldsmith.training.callbacks.run_reports import RunPage

PAGE = Path(__file__).parents[2] / "docs" / "run_page.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_guide_and_of_the_page(tmp_path: Path, programs: str) -> None:
    (script,) = re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.M | re.S)
    script = script.replace("--val-clips 0", "--val-clips 0 --num-frames 5")
    small = "trainer.max_iter=2 scheduler.warm_up_steps=[1] dataloader_train.max_samples_per_batch=2"
    script = script.replace("trainer.max_iter=60", small)
    done = shell(tmp_path, programs, script)
    runs = tmp_path / "outputs/train/worldsmith/demo"
    assert done.stdout.splitlines()[-2:] == [
        f"the run page: {runs / 'slow/report.html'}",
        f"the comparison of 2 runs: {tmp_path / 'compare.html'}",
    ]
    assert f"report       {runs / 'slow/report.html'}" in done.stderr
    compared = (tmp_path / "compare.html").read_text()
    assert "<td>0.002</td><td>0.004</td>" in re.sub(r">\s+<", "><", compared)
    run = read_run(runs / "slow")
    assert run.absent.keys() <= {"EveryNDrawSample/samples.jsonl"}
    assert run.problems == []
    commands = {advice.title: advice.command for advice in next_steps(run, find_status(run))}
    assert list(commands) == ["Train longer", "Export it", "Generate", "Evaluate"]
    plans = "\n".join(f"{commands[name]} --dryrun" for name in ("Export it", "Generate", "Evaluate"))
    shell(Path("/"), programs, f"{plans}\n{commands['Train longer']}")  # from anywhere, without DATASET_PATH
    status = find_status(read_run(runs / "slow"))
    assert (status.state, status.step, status.max_iter) == ("finished", 4, 4)


def shell(folder: Path, programs: str, script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{programs}:{os.environ['PATH']}"}
    for name in ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT", "WORLDSMITH_LATENT_CACHE", "DATASET_PATH"):
        environment.pop(name, None)
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_numbers_of_the_guide() -> None:
    assert f"`trainer.callbacks.run_page.every_seconds` ({RunPage.Config().every_seconds})" in TEXT
    assert f"Curves of more than {series.MOST_BUCKETS} values" in TEXT
    assert f"Videos of up to {samples.EMBEDDED_FILE // 1000} kB" in TEXT
    assert f"{samples.EMBEDDED_PAGE / 1e6} MB of them in all" in TEXT
    assert f"more than {samples.EMBEDDED_PICTURE // 1000} kB" in TEXT
    assert f"up to {samples.PICTURE_WIDTH} px wide" in TEXT
    assert f"{samples.EMBEDDED_PICTURES / 1e6} MB of images" in TEXT.replace("\n  ", " ")
    assert samples.OPEN_PROMPTS == 4
    assert "The first four prompts" in TEXT


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", TEXT):
        assert (PAGE.parent / link).exists(), link
    assert all(picture.stat().st_size < 200_000 for picture in PAGE.parent.glob("images/run_page*.png"))
