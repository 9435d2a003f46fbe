"""The demos of generators: dataset, training, export, evaluation, each a public command that does nothing when its
result is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from worldsmith.cli.main import main

ROOT = Path(__file__).parents[2]
DEMOS = {
    "moving_shapes": ["demo.sh"],
    "cogvideox_demo": ["demo_pipeline.sh", "cogvideox_demo"],
    "wan_demo": ["demo_pipeline.sh", "wan_demo"],
}
QUICK = ["moving_shapes", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cogvideox_demo", "wan_demo"))]
LAST_LINE = re.compile(r"adherence (\d\.\d\d) \(untrained (\d\.\d\d)\) over (\d+) prompts")


def commands(folder: Path, name: str) -> list[list[str]]:
    """A demo's commands at the smallest size."""
    toml = ROOT / f"examples/toml/sft_config/{name}.toml"
    run = folder / f"runs/worldsmith/demo/{name}"
    prompts = folder / "data/two_prompts.jsonl"
    small = ["trainer.max_iter=2", "dataloader_train.max_samples_per_batch=2"]
    return [
        ["dataset", "moving-shapes", str(folder / "data"), "--clips", "3", "--val-clips", "1"],
        ["train", f"--sft-toml={toml}", "--", *small],
        ["export", str(run), "--dtype", "float32", "-o", str(run / "pipeline")],
        ["evaluate", str(run / "pipeline"), "--untrained", str(run), "--prompts", str(prompts),
         "-o", str(run / "evaluation"), "--steps", "2"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_the_commands_of_a_demo_lead_to_figures_and_do_nothing_twice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATASET_PATH", str(tmp_path / "data"))
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "runs"))
    monkeypatch.setenv("WORLDSMITH_LATENT_CACHE", str(tmp_path / "latents"))
    run = tmp_path / f"runs/worldsmith/demo/{name}"
    for again in (False, True):
        for words in commands(tmp_path, name):
            assert main(words) == 0, words
            said = capfd.readouterr()
            if words[0] == "dataset":
                prompts = (tmp_path / "data/prompts.jsonl").read_text().splitlines(keepends=True)
                assert len(prompts) == 32
                if not again:
                    (tmp_path / "data/two_prompts.jsonl").write_text("".join(prompts[:2]))
            if again:
                assert re.search(r"is complete|complete|is already there|up to date", said.out + said.err), words
        last = LAST_LINE.fullmatch(said.out.splitlines()[-1])
        assert last, said.out
        assert last[3] == "2"
    figures = json.loads((run / "evaluation/adherence.json").read_text())
    assert {"trained", "untrained"} <= set(figures)
    assert len(list((run / "evaluation/trained").glob("*.mp4"))) == 2
    assert len(list((run / "evaluation/untrained").glob("*.mp4"))) == 2
    assert (run / "evaluation/contact_sheet.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", DEMOS)
def test_the_trained_generator_follows_its_prompts(name: str) -> None:
    """A whole demo: at least 80 % of the prompts are met in all three attributes, and less than 10 % untrained."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", *DEMOS[name]],
        cwd=ROOT / "examples",
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = LAST_LINE.fullmatch(done.stdout.splitlines()[-1])
    assert last, done.stdout
    assert int(last[3]) == 32
    assert float(last[1]) >= 0.80
    assert float(last[2]) < 0.10
