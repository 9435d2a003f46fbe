"""`--parent` stands for the flags that name a model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from worldsmith.actions.registry import command_classes
from worldsmith.cli import run_source, train
from worldsmith.cli.action_command import applicable_options, load_settings, sort_action_words
from worldsmith.cli.main import main
from worldsmith.cli.spec_and_parent import adopt_parent, adopt_parent_run
from worldsmith.config.errors import UserError
from worldsmith.demo.commands import MakeMovingShapes


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Adapters that know their base."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/name"}))
    return folder


def test_it_fills_what_was_not_given(adapter: Path) -> None:
    (kind,) = command_classes("export").values()
    words = sort_action_words(["--parent", str(adapter), "--dtype", "float32"], [kind])
    adopt_parent(words.own["--parent"], words, [kind], None)
    config = load_settings("worldsmith export", kind, words, []).tree
    assert (config.model, config.base, config.dtype) == (str(adapter), "org/name", "float32")
    words = sort_action_words(["--parent", str(adapter), "--base", "mine"], [kind])
    adopt_parent(words.own["--parent"], words, [kind], None)
    assert load_settings("worldsmith export", kind, words, []).tree.base == "mine"


def test_how_pictures_are_shown_goes_along_unless_it_is_said(tmp_path: Path) -> None:
    """Of fps and nframes a run has one, so that one of them that is given goes before both."""
    run = tmp_path / "run"
    (run / "checkpoints" / "iter_000000001").mkdir(parents=True)
    (run / "checkpoints" / "iter_000000001" / "manifest.json").write_text('{"files": {}}')
    (run / "config.yaml").write_text(
        "trainer: {max_iter: 1}\n"
        "dataloader_train: {processor: {media: {fps: 2.0, total_pixels: 4096}, outer_vision_tokens: true}}\n"
    )
    kind = command_classes("infer")["answers"]

    def processor(*more: str) -> Any:
        words = sort_action_words(["--parent", str(run), "--prompt", "Why?", *more], [kind])
        adopt_parent(words.own["--parent"], words, [kind], None)
        return load_settings("worldsmith infer", kind, words, []).tree.processor

    media = processor().media
    assert (media.fps, media.total_pixels, processor().outer_vision_tokens) == (2.0, 4096, True)
    media = processor("--processor.media.nframes", "4").media
    assert (media.fps, media.nframes, media.total_pixels) == (None, 4, 4096)


def test_a_model_beside_it_is_refused(adapter: Path, tmp_path: Path) -> None:
    (kind,) = command_classes("export").values()
    settings = tmp_path / "settings.toml"
    settings.write_text('model = "other"')
    for head, file in ((["other"], None), (["--model", "other"], None), ([], str(settings))):
        words = sort_action_words(["--parent", str(adapter), *head], [kind])
        with pytest.raises(UserError, match="and another argument both name the model"):
            adopt_parent(words.own["--parent"], words, [kind], file)


def test_an_action_that_reads_no_model_has_no_parent(adapter: Path) -> None:
    with pytest.raises(UserError, match="this command needs none"):
        adopt_parent(str(adapter), sort_action_words([], [MakeMovingShapes]), [MakeMovingShapes], None)
    assert not any("--parent" in option for option in applicable_options("dataset", MakeMovingShapes))
    assert any("--parent" in option for option in applicable_options("export", *command_classes("export").values()))


def words_of_train(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    train.add_arguments(parser)
    return train.read_words(parser, words)


def test_a_run_starts_from_the_weights_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATASET_PATH", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    args = words_of_train("moving_shapes", "--parent", str(tmp_path))
    adopt_parent_run(args)
    assert run_source.load_run(args)[0].tree.checkpoint.load_path == str(tmp_path)
    for more in (["--checkpoint.load_path", "other"], ["--checkpoint.load_path=other"]):
        with pytest.raises(UserError, match="both set the initial weights"):
            adopt_parent_run(words_of_train("moving_shapes", "--parent", str(tmp_path), *more))
    args = words_of_train("moving_shapes", "--parent", str(tmp_path))
    args.overrides = ["checkpoint.load_path=other"]
    with pytest.raises(UserError, match="both set the initial weights"):
        adopt_parent_run(args)


def test_a_run_that_goes_on_does_not_ask_for_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be gone, or have another best checkpoint by now."""
    monkeypatch.setenv("DATASET_PATH", str(tmp_path))
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path))
    words = words_of_train("moving_shapes", "--parent", "gone:best", "--job.name", "mine")
    with pytest.raises(UserError, match="no run of this name"):
        adopt_parent_run(words)
    job = run_source.load_run(words)[0].tree.job
    run = tmp_path / job.project / job.group / "mine"
    (run / "checkpoints" / "iter_000000001").mkdir(parents=True)
    (run / "config.yaml").write_text("checkpoint: {load_path: where/it/was}")
    adopt_parent_run(words)
    assert run_source.load_run(words)[0].tree.checkpoint.load_path == "where/it/was"


def test_no_run_starts_from_adapters_alone(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATASET_PATH", str(adapter))
    with pytest.raises(UserError, match=r"adapters, from which no run can start"):
        adopt_parent_run(words_of_train("moving_shapes", "--parent", str(adapter)))


def test_a_spec_is_no_option_of_a_command_that_reads_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert not any("--spec" in option for option in applicable_options("dataset", MakeMovingShapes))
    assert any("--spec" in option for option in applicable_options("gaps", *command_classes("gaps").values()))
    assert main(["dataset", "moving-shapes", str(tmp_path / "set"), "--spec", "spec.toml"]) == 2
    assert "worldsmith dataset does not read specs; these commands do: train, evaluate" in capsys.readouterr().err
    assert main(["dataset", "moving-shapes", str(tmp_path / "set"), "--parent", "run"]) == 2
    assert "--parent selects a model, but this command needs none" in capsys.readouterr().err
    assert not (tmp_path / "set").exists()
