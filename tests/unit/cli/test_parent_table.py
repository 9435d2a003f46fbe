"""What a spec of each action gets from its parent: the model, the base and the processor, and where its results go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worldsmith.actions.registry import kinds_of
from worldsmith.cli.action import load, sort
from worldsmith.cli.parent_words import PARENT, adopt_parent
from worldsmith.cli.spec_words import SPEC, read_spec_words
from worldsmith.config.specs.forms import form_of
from worldsmith.config.specs.spec_file import read_spec
from worldsmith.config.specs.translation import translate

SPECS = {
    "evaluate": """
        results_dir = "results"
        [dataset]
        annotation_path = "kpi.json"
        """,
    "infer": """
        media = "clips"
        prompt = "Why?"
        results_dir = "results"
        """,
    "quantize": """
        results_dir = "results"
        """,
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run `parent` below the output root; returns its only checkpoint."""
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path))
    folder = tmp_path / "project" / "group" / "parent"
    checkpoint = folder / "checkpoints" / "iter_000000001"
    (checkpoint / "model").mkdir(parents=True)
    (checkpoint / "manifest.json").write_text('{"files": {}}')
    (folder / "config.yaml").write_text(
        "trainer: {max_iter: 1}\ndataloader_train: {processor: {media: {fps: 3.0}, outer_vision_tokens: true}}\n"
    )
    return checkpoint


def settings_of(command: str, spec: Path, *words: str) -> Any:
    """What the front door makes of a spec."""
    (kind,) = [cls for name, cls in kinds_of(command).items() if name in ("answers", "")]
    sorted_words = sort([SPEC, str(spec), *words], [kind])
    read_spec_words(command, sorted_words, settings="--settings")
    adopt_parent(sorted_words.own[PARENT], sorted_words, [kind], None)
    return load(f"worldsmith {command}", kind, sorted_words, []).tree


@pytest.mark.parametrize("named_by", ["file", "word", "flag"])
@pytest.mark.parametrize("command", SPECS)
def test_the_checkpoint_of_the_parent_is_the_model(command: str, named_by: str, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(('parent_job_id = "parent"\n' if named_by == "file" else "") + SPECS[command])
    words = {"file": [], "word": ["parent_job_id=parent"], "flag": ["--parent", "parent"]}[named_by]
    settings = settings_of(command, file, *words)
    assert settings.model == str(run)
    assert str(settings.out).startswith("results")
    shown = settings.processor
    assert (shown.media.fps, shown.outer_vision_tokens) == (3.0, True), "what the spec does not say is as in the run"


def test_train_goes_on_by_its_name_and_takes_a_parent_by_a_flag(tmp_path: Path) -> None:
    """The rows of train.resume and train.output_dir; the weights of a parent are found when the run starts."""
    file = tmp_path / "train.toml"
    file.write_text('parent_job_id = "parent"\n[train]\nresume = true\noutput_dir = "out/mine"\n')
    told = translate(read_spec(form_of("train"), str(file), []))
    said = {line.key: (line.outcome, line.text) for line in told.lines}
    assert said["train.resume"] == ("kept", "the same command goes on with the run of this name")
    assert told.data["job"]["name"]
    (problem,) = (problem for problem in told.problems if problem.path == "parent_job_id")
    assert "give --parent NAME" in str(problem)
