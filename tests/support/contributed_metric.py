"""Uses the metric that `docs/evaluate.md` adds to a copy of the package, in the current folder."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import torch
from generator_run import write_generator_run

import worldsmith
from worldsmith.cli.main import main

ADVICE = "dd --features FOLDER; `hf download me/tiny-features --local-dir FOLDER` downloads such weights"


def command(words: str, code: int = 0) -> str:
    """What a command prints, in one line."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        found = main(words.split())
    assert found == code, (words, found, error.getvalue())
    return " ".join((error if code else out).getvalue().split())


def check_help() -> None:
    assert "|diversity|brightness|shapes|clip|fvd|features " in command("evaluate --help evaluators"), command(
        "evaluate --help evaluators"
    )
    text = command("evaluate --help features")
    assert "--features TEXT or null" in text, text
    assert "Folder with features.pt" in text, text
    row = "| `features` | `feature_distance` | mean squared distance of the features of generated and real frames, with"
    assert f"{row} `--features FOLDER` |" in command("schema metrics")


def check_results() -> None:
    write_generator_run(Path.cwd())
    evaluate = "evaluate run --dataset data -o out --model-mode image2video --max-videos 2 --steps 1 --device cpu"
    assert f"features: its weights are not set: a{ADVICE}" in command(f"{evaluate} --evaluators features", 2)
    Path("features").mkdir()
    said = command(f"{evaluate} --evaluators features --features features", 2)
    assert f"is missing. A{ADVICE}" in said, said
    torch.manual_seed(0)
    torch.save(torch.nn.Conv2d(3, 8, 3).state_dict(), "features/features.pt")
    words = f"{evaluate} --evaluators features --evaluators motion --features features --stride 3"
    assert "features, motion" in command(f"{words} --dryrun")
    assert "feature_distance" in command(words)
    facts = json.loads(Path("out/evaluation.json").read_text())
    assert list(facts["figures"]) == ["motion", "flicker", "feature_distance"]
    figure = facts["figures"]["feature_distance"]["trained"]
    assert figure["samples"] == 2, figure
    values = [one["figures"]["feature_distance"] for one in facts["samples"]["trained"]]
    assert min(values) > 0, values
    assert abs(sum(values) / 2 - figure["mean"]) < 1e-9, (values, figure)
    assert "is complete for these videos" in command(words)
    assert "is complete for these videos" not in command(words.replace("--stride 3", "--stride 2"))
    assert "brightness" in command(f"{evaluate.replace('-o out', '-o bright')} --evaluators brightness")
    facts = json.loads(Path("bright/evaluation.json").read_text())
    assert 0 < facts["figures"]["brightness"]["trained"]["mean"] < 255, facts["figures"]


if __name__ == "__main__":
    assert Path(worldsmith.__file__).is_relative_to(Path.cwd()), worldsmith.__file__
    check_help()
    check_results()
