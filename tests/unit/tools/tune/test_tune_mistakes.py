"""What `worldsmith tune` refuses before anything runs: exit code 2, one message, nothing left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.tools.tune.record import lock_study

RUN = ["videophy2_nano_tiny", "trainer.max_iter=20"]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["tune", *words, "--dryrun"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("worldsmith: error: ")
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--search", "optimizer.rate=1..2"], "--search optimizer.rate=1..2: 'optimizer' has no key 'rate'"),
        (["--search", "optimizer.lr=2..1"], "the lower limit 2 is not below the upper limit 1"),
        (["--keep", "optimizer.lr"], "no setting to search"),
        (["--trials", "1"], "trials must be at least 2, found 1"),
        (
            ["--metric", "val/accuracy"],
            "unknown whether smaller or larger values are better. Add --direction min or max",
        ),
        (["--metric", "accuracy", "--direction", "max"], "needs --evaluate"),
        (["--evaluate", "dataset=LlavaDataset"], "with --evaluate, name a metric of `worldsmith evaluate`"),
        (["trainer.run_validation=false"], "the run does not validate"),
        (["--metric", "val_ema/loss"], "keeps no EMA weights"),
        (["--pruner", "asha", "trainer.validation_iter=50"], "validates only at its end"),
        (["~trainer.callbacks.metrics"], "add the callback `metrics`"),
        (["--pruner", "ahsa"], "did you mean 'asha'"),
        (["--trails", "5"], "trails"),
        (["optimizer.lrr=3"], "did you mean 'optimizer.lr'"),
    ],
)
def test_a_mistake_is_one_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], said: str
) -> None:
    given = [word for word in RUN if word.partition("=")[0] not in [w.partition("=")[0] for w in words]]
    assert said in refused(capsys, *given, "-o", str(tmp_path / "study"), *words)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_study_or_of_something_else_is_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [*RUN, "-o", str(tmp_path)]
    (tmp_path / "thesis.tex").write_text("all of it")
    assert f"{tmp_path} is not empty and contains no study" in refused(capsys, *words)
    (tmp_path / "thesis.tex").unlink()
    about = {"metric": "val/accuracy", "run": {"optimizer.lr": 0.5}}
    (tmp_path / "study.json").write_text(json.dumps(about))
    said = refused(capsys, *words)
    assert "contains another study" in said
    assert "metric: was 'val/accuracy', is now 'val/loss'" in said
    assert "optimizer.lr: was 0.5, is now 1e-06" in said


def test_a_dry_run_says_what_is_searched_and_tried_first_and_what_would_stop_trial_0(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    search = ["--search", "trainer.grad_accum_iter=1|2", "--search", "optimizer.lr=log:1e-6..1e-3"]
    assert main(["tune", *RUN, "-o", str(tmp_path / "study"), *search, "--dryrun"]) == 2
    streams = capsys.readouterr()
    assert "dataloader_train.dataset: examples/data/videophysics/videophy2_train does not exist" in streams.err
    said = streams.out.splitlines()
    assert "search      optimizer.lr: 1e-06 to 0.001, logarithmic" in said
    assert "search      trainer.grad_accum_iter: 1, 2" in said
    assert [line.split()[:2] for line in said if line.startswith("trial")] == [["trial", str(n)] for n in range(4)]
    assert not (tmp_path / "study").exists()


def test_two_commands_do_not_work_on_one_study(tmp_path: Path) -> None:
    with lock_study(tmp_path / "study"):
        child = os.fork()
        if child == 0:
            try:
                with lock_study(tmp_path / "study"):
                    os._exit(0)
            except UserError as error:
                os._exit(7 if "another `worldsmith tune` is using this study" in str(error) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
