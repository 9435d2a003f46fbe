"""What is tuned: a recipe or a spec, whose words are told from those of the run, and whether there is a search."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.tools.tune.source import Source
from worldsmith.tools.tune.tune import Tune
from worldsmith.training.run_folder import run_path

ROOT = Path(__file__).parents[4]
SPEC = str(ROOT / "examples/specs/lora_one_gpu.yaml")


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve records for training and for validation, without their videos."""
    turns = [{"from": "human", "value": "<video>\nIs it possible?"}, {"from": "gpt", "value": "yes"}]
    records = [{"id": str(n), "video": f"{n}.mp4", "video_fps": 8, "conversations": turns} for n in range(64)]
    for name in ("DATASET_PATH", "VAL_DATASET_PATH"):
        folder = tmp_path / name.lower()
        folder.mkdir()
        (folder / "annotations.json").write_text(json.dumps(records))
        monkeypatch.setenv(name, str(folder))


def test_words_of_a_spec_change_it_and_others_the_run_that_it_leads_to() -> None:
    source = Source(SPEC, ["train.epoch=2", "trainer.validation_iter=1", "num_epochs=3", "~custom.vision"])
    assert source.split() == (["train.epoch=2", "num_epochs=3", "~custom.vision"], ["trainer.validation_iter=1"])
    command = source.command(["optimizer.lr=0.5"])
    assert command == [
        *("train", "--spec", SPEC, "train.epoch=2", "num_epochs=3", "~custom.vision"),
        *("--", "trainer.validation_iter=1", "optimizer.lr=0.5"),
    ]
    loaded = Source(SPEC, ["train.optm_lr=1e-5", "trainer.validation_iter=1"]).load(["trainer.seed=7"])
    assert (loaded.tree.optimizer.lr, loaded.tree.trainer.validation_iter, loaded.tree.trainer.seed) == (1e-5, 1, 7)
    assert Source("toy", ["optimizer.lr=1"]).command() == ["train", "toy", "--", "optimizer.lr=1"]


def test_settings_of_a_trial_are_words_of_the_spec_or_of_the_run() -> None:
    source = Source(SPEC, ["trainer.seed=3"])
    command = source.command(["train.epoch=4", "optimizer.fused=false"])
    assert command == ["train", "--spec", SPEC, "train.epoch=4", "--", "trainer.seed=3", "optimizer.fused=false"]
    ends = [
        Source(SPEC, [f"train.epoch={n}", "train.max_num_steps=100000"]).load(["train.optm_lr=3e-5"]).tree
        for n in (2, 4)
    ]
    assert [tree.optimizer.lr for tree in ends] == [3e-5, 3e-5]
    assert ends[1].trainer.max_iter == 2 * ends[0].trainer.max_iter
    assert sum(ends[1].scheduler.cycle_lengths) == ends[1].trainer.max_iter


def test_the_folder_of_a_study_is_named_by_the_spec(tmp_path: Path) -> None:
    assert Source(SPEC, ["results_dir=a", "train.output_dir=b"]).output_folder() == "a"
    assert Source(SPEC, ["train.output_dir=b"]).output_folder() == "b"
    spec = tmp_path / "spec.yaml"
    spec.write_text("train: {epoch: 1}\n")
    assert Source(str(spec)).output_folder() is None
    assert Source("videophy2_nano_tiny").output_folder() is None
    with pytest.raises(UserError, match="no folder for the study: use -o DIR"):
        _ = Tune.Config(source=str(spec)).build().setup.folder
    assert Tune.Config(source=str(spec), words=["results_dir=a"]).build().setup.folder == Path("a/tune")
    assert Tune.Config(source=str(spec), words=["results_dir=a"], out="b").build().setup.folder == Path("b")


def test_a_relative_results_folder_lies_below_the_output_root_as_that_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "out"))
    tune = Tune.Config(source=SPEC, words=["results_dir=a"]).build().setup
    assert tune.folder == tmp_path / "out/a/tune"
    assert run_path(tune.base.tree.job).is_relative_to(tmp_path / "out/a")
    assert Tune.Config(source=SPEC, words=[f"results_dir={tmp_path}"]).build().setup.folder == tmp_path / "tune"
    assert Tune.Config(source=SPEC, words=["results_dir=~/a"]).build().setup.folder == Path("~/a/tune").expanduser()
    assert Tune.Config(source=SPEC, out="b").build().setup.folder == Path("b")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["automl_policy=off"], "automl_policy is off for this run"),
        (["--request", "fine-tune it, plain training please"], "automl_policy is off for this run"),
        (["--schemas", "nowhere"], "AutoML is enabled but not runnable until schemas are generated"),
    ],
)
def test_without_a_search_it_is_the_training_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], why: str
) -> None:
    given = ["tune", "videophy2_nano_tiny", "trainer.max_iter=5", *words, "-o", str(tmp_path / "study")]
    assert main([*given, "--dryrun"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert why in said[0]
    assert said[1:] == ["run         worldsmith train videophy2_nano_tiny -- trainer.max_iter=5"]
    started: list[str] = []

    def start(program: str, words: list[str]) -> None:
        started.extend(words)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", start)
    assert main(given) == 0
    assert started[1:4] == ["-m", "worldsmith", "train"]
    assert started[-3:] == ["videophy2_nano_tiny", "--", "trainer.max_iter=5"]
    assert why in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


def test_trials_and_the_best_run_are_new_runs_where_the_source_resumes_one(tmp_path: Path) -> None:
    file = tmp_path / "resumes.yaml"
    file.write_text(Path(SPEC).read_text().replace("train:\n", "train:\n  resume: true\n"))
    recipe = "videophy2_nano_tiny"
    for source, word, ends in (
        (SPEC, "train.resume=true", ["train", "--spec", SPEC]),
        (str(file), "train.epoch=2", ["train", "--spec", str(file), "train.epoch=2", "train.resume=false"]),
        (SPEC, "job.resume_newest=true", ["train", "--spec", SPEC]),
        (recipe, "job.resume_newest=true", ["train", recipe]),
    ):
        given = Source(source, [word])
        assert given.load().tree.job.resume_newest
        tune = Tune.Config(source=source, words=[word]).build().setup
        assert tune.source.command() == ends
        assert not tune.base.tree.job.resume_newest
        plain = Tune.Config(source=source, words=[word, "automl_policy=off"]).build().setup
        assert plain.source.command() == given.command()
    continued = Source(SPEC, ["train.resume=some/run"])
    assert continued.as_new_run() == continued


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only checkpoint of a finished run `parent` of a reasoner, below the output root."""
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "out"))
    run = tmp_path / "out/project/group/parent"
    checkpoint = run / "checkpoints/iter_000000001"
    (checkpoint / "model").mkdir(parents=True)
    (checkpoint / "manifest.json").write_text('{"files": {}}')
    (run / "config.yaml").write_text(
        "trainer: {max_iter: 1}\nmodel: {config: {policy: {backbone: {model_name: org/other}}}}\n"
    )
    return checkpoint


def test_every_trial_starts_from_the_parent(parent: Path, tmp_path: Path) -> None:
    file = tmp_path / "child.yaml"
    file.write_text(f"parent_job_id: parent\n{Path(SPEC).read_text()}")
    start = f"checkpoint.load_path={parent}"
    model = "policy.model_name_or_path=org/other"
    for source, given, word, command in (
        (SPEC, "parent", "train.epoch=2", ["--spec", SPEC, "train.epoch=2", model]),
        (SPEC, None, "parent_job_id=parent", ["--spec", SPEC, model]),
        (str(file), None, "train.epoch=2", ["--spec", str(file), "train.epoch=2", "~parent_job_id", model]),
        ("videophy2_nano_tiny", "parent", "", ["videophy2_nano_tiny"]),
    ):
        tune = Tune.Config(source=source, words=[word] * bool(word), parent_run=given).build().setup
        assert tune.source.command() == ["train", *command, "--", start]
        assert tune.base.tree.checkpoint.load_path == str(parent)
        assert tune.identity["run"]["checkpoint.load_path"] == str(parent)
        if source != "videophy2_nano_tiny":
            assert tune.base.tree.model.config.policy.backbone.model_name == "org/other"
    plain = Tune.Config(source=SPEC, words=["automl_policy=off", "trainer.seed=1"], parent_run="parent").build().setup
    assert plain.source.command() == ["train", "--spec", SPEC, "--parent", "parent", "--", "trainer.seed=1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--parent", "parent", "checkpoint.load_path=other"], "both set the initial weights"),
        (["--parent", "parent", "parent_job_id=other"], "omit one of them"),
        (["--parent", "parent", "policy.model_name_or_path=a/b"], "both name the model"),
        (["--parent", "gone"], "no run of this name"),
    ],
)
def test_a_parent_that_cannot_be_is_refused(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["tune", "--spec", SPEC, "-o", str(tmp_path / "study"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


def test_a_trial_has_the_processes_that_the_run_asks_for() -> None:
    for words, processes in (
        ([], 1),
        (["num_gpus=2"], 2),
        (["num_gpus=2", "num_nodes=2"], 4),
        (["model.config.parallelism.data_parallel_shard_degree=4"], 4),
        (["num_gpus=-1", "num_nodes=2"], 2),
    ):
        tune = Tune.Config(source=SPEC, words=words).build().setup
        assert tune.processes == processes
        command = tune.source.command(processes=processes)
        launch = ["launch", "--nproc-per-node", str(processes)] if processes > 1 else []
        assert command == [*launch, *tune.source.command()]


@pytest.mark.parametrize(
    ("gpus", "words", "message"),
    [
        (1, [], r"each trial: \[E113\] 2 processes on this machine need one GPU each, found 1"),
        (2, ["--parallel", "2"], "--parallel 2 with 2 processes each: this machine has 2 CUDA devices"),
        (2, [], None),
        (0, ["--parallel", "2"], None),
    ],
)
def test_more_processes_than_gpus_are_refused_as_by_launch(
    gpus: int, words: list[str], message: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    parallel = int(words[1]) if words else 1
    spec_words = ["num_gpus=2", "validation.enable=true"]
    tune = Tune.Config(source=SPEC, words=spec_words, out=str(tmp_path / "study"), parallel=parallel).build().setup
    if message is None:
        tune.check()
        return
    with pytest.raises(UserError, match=message):
        tune.check()


def test_a_spec_without_validation_gets_advice_in_its_own_keys(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ["tune", SPEC, "-o", str(tmp_path / "study"), "--dryrun"]
    assert main([*given, "validation.enable=false"]) == 2
    said = capsys.readouterr().err
    advice = ["validation.enable=true", "train.train_policy.dataset.test_size="]
    assert [word for word in advice if word not in said] == []
    assert "run_validation" not in said
    main([*given, "~custom.val_dataset", advice[0], f"{advice[1]}8"])
    assert "does not validate" not in capsys.readouterr().err


def test_another_policy_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["tune", "videophy2_nano_tiny", "automl_policy=maybe", "-o", str(tmp_path / "study")]) == 2
    assert "expected auto or off, found 'maybe'" in capsys.readouterr().err
