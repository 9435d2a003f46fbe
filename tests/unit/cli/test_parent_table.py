"""What a spec of each action gets from its parent: the model, the base and the processor, and where its results go."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

import pytest

from worldsmith.actions.registry import command_classes
from worldsmith.cli import run_source, train
from worldsmith.cli.action_command import load_settings, sort_action_words
from worldsmith.cli.main import main
from worldsmith.cli.spec_and_parent import PARENT, SPEC, adopt_parent, adopt_parent_run, read_spec_words
from worldsmith.config.errors import UserError
from worldsmith.dialects.cosmos_rl.spec_file import read_spec
from worldsmith.dialects.cosmos_rl.spec_formats import form_of
from worldsmith.dialects.translation import format_report, translate

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
    (kind,) = [cls for name, cls in command_classes(command).items() if name in ("answers", "")]
    sorted_words = sort_action_words([SPEC, str(spec), *words], [kind])
    read_spec_words(command, sorted_words, settings="--settings")
    adopt_parent(sorted_words.own[PARENT], sorted_words, [kind], None)
    return load_settings(f"worldsmith {command}", kind, sorted_words, []).tree


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


TRAIN = """
train: {train_policy: {type: sft, mini_batch: 1}, max_num_steps: 3, resume: true, output_dir: out/mine}
custom: {train_dataset: {annotation_path: kpi.json}}
"""


def tree_of_train(file: Path, *words: str) -> Any:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    train.add_arguments(parser)
    args = train.read_words(parser, [*(["--spec", str(file)] if words else [str(file)]), *words])
    adopt_parent_run(args)
    return run_source.load_run(args)[0].tree


@pytest.mark.parametrize("named_by", ["file", "word", "flag"])
@pytest.mark.parametrize("stated", [None, "''", "nvidia/Cosmos-Reason2-8B"])
def test_a_training_starts_from_its_parent_whose_model_replaces_that_of_the_file(
    named_by: str, stated: str | None, run: Path, tmp_path: Path
) -> None:
    (run.parents[1] / "config.yaml").write_text(
        "trainer: {max_iter: 1}\nmodel: {config: {policy: {backbone: {model_name: org/other}}}}\n"
    )
    file = tmp_path / "train.yaml"
    model = f"policy: {{model_name_or_path: {stated}}}\n" if stated else ""
    file.write_text(TRAIN + model + ("parent_job_id: parent\n" if named_by == "file" else ""))
    words = {"file": [], "word": ["parent_job_id=parent"], "flag": ["--parent", "parent"]}[named_by]
    tree = tree_of_train(file, *words)
    assert tree.model.config.policy.backbone.model_name == "org/other"
    assert tree.checkpoint.load_path == str(run)
    assert (tree.job.folder, tree.job.resume_newest) == ("out/mine", True)
    with pytest.raises(UserError, match="both name the model"):
        tree_of_train(file, "--parent", "parent", "policy.model_name_or_path=a/b")
    with pytest.raises(UserError, match="omit one of them"):
        tree_of_train(file, "--parent", "parent", "parent_job_id=other")


@pytest.mark.parametrize("words", [["parent_job_id=parent"], ["--parent", "parent"]])
def test_the_search_that_a_start_or_a_refusal_names_has_the_parent(
    words: list[str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(TRAIN)
    search = f"`worldsmith tune --spec {file} {' '.join(words)}"
    assert main(["train", "--spec", str(file), *words, "automl_policy=auto"]) == 2
    assert f"{search} -o DIR`" in capsys.readouterr().err
    with caplog.at_level(logging.INFO, logger="worldsmith"):
        assert main(["train", "--spec", str(file), *words, "--optimizer.fused", "false", "--dryrun"]) == 2
    fused = "optimizer.fused=false"
    wanted = {f"{search} {fused} -o DIR`", f"`worldsmith tune --spec {file} {fused} {' '.join(words)} -o DIR`"}
    assert any(command in caplog.text for command in wanted)


def test_a_training_that_is_resumed_keeps_its_start_and_its_model(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(TRAIN)
    mine = tmp_path / "out/mine/first"
    (mine / "checkpoints/iter_000000001").mkdir(parents=True)
    (mine / "checkpoints/latest_checkpoint.txt").write_text("iter_000000001")
    (mine / "config.yaml").write_text(
        "checkpoint: {load_path: was/here}\nmodel: {config: {policy: {backbone: {model_name: org/first}}}}\n"
    )
    tree = tree_of_train(file, "--parent", "gone:best")
    assert (tree.checkpoint.load_path, tree.model.config.policy.backbone.model_name) == ("was/here", "org/first")


def test_a_conversion_of_a_training_has_no_parent(tmp_path: Path) -> None:
    """The weights of a parent are found when the run starts."""
    file = tmp_path / "train.yaml"
    file.write_text(TRAIN + "parent_job_id: parent\n")
    told = translate(read_spec(form_of("train"), str(file), []))
    (problem,) = (problem for problem in told.problems if problem.path == "parent_job_id")
    assert "start it with worldsmith train, or" in str(problem)


@pytest.mark.parametrize("named_by", ["file", "word"])
@pytest.mark.parametrize("stated", ["''", "nvidia/Cosmos-Reason2-8B"])
def test_a_check_of_the_config_leaves_the_parent_out_with_a_note(
    stated: str, named_by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, in_file = tmp_path / "train.yaml", named_by == "file"
    model = f"policy: {{model_name_or_path: {stated}}}\n"
    file.write_text(TRAIN + model + ("parent_job_id: gone\n" if in_file else ""))
    words = [str(file)] if in_file else ["--spec", str(file), "parent_job_id=gone"]
    assert main(["config", "check", *words]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("OK")
    assert told.err.count("parent_job_id is not checked: the initial model is that of gone") == 1


def test_frames_that_a_template_leaves_open_are_those_of_the_parent(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    open_keys = "vision: {num_frames: 0}\nmodel: {model_name: ''}\n"
    file.write_text(f"dataset: {{annotation_path: kpi.json}}\nresults_dir: results\n{open_keys}")
    settings = settings_of("evaluate", file, "--parent", "parent")
    assert (settings.model, settings.processor.media.fps, settings.processor.media.nframes) == (str(run), 3.0, None)
    words = sort_action_words([SPEC, str(file), "--parent", "parent"], list(command_classes("evaluate").values()))
    read_spec_words("evaluate", words, settings="--settings")
    assert words.spec is not None
    assert words.spec.get_warnings() == []
    assert "0 is a placeholder: as in the parent" in format_report(words.spec)
