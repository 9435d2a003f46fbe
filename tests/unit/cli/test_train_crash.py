"""What a run that fails says after its error."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_runs
from toy_runs import toy_config

from worldsmith.cli import launch
from worldsmith.cli.main import main
from worldsmith.config.tree.plain import to_yaml
from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_runs.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def train(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Any:
    """Trains with a step that raises the error; returns what was said."""

    def run(error: Exception, *words: str) -> str:
        def fail(*arguments: object) -> None:
            raise RuntimeError("the step failed") from error

        monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "out"))
        monkeypatch.delenv("IMAGINAIRE_OUTPUT_ROOT", raising=False)
        monkeypatch.setattr(Trainer, "training_step", fail)
        (tmp_path / "run.yaml").write_text(to_yaml(toy_config(world, steps=3)))
        assert main(["train", str(tmp_path / "run.yaml"), *words]) == 1
        return str(capsys.readouterr().err)

    return run


def test_a_known_error_is_explained_in_a_few_lines_after_it(train: Any, tmp_path: Path, world: Path) -> None:
    said = train(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert "RuntimeError: the step failed" in said
    error, _, after = said.partition("RuntimeError: the step failed\n")
    assert "Traceback (most recent call last):" in error
    lines = after.splitlines()
    assert lines[0].startswith("meaning: The GPU does not have enough free memory")
    assert all(line.startswith("try: ") for line in lines[1:-1])
    assert lines[-1] == f"more: worldsmith explain {tmp_path}/out/tests/tiny/run"
    assert 3 <= len(lines) <= 4
    now = toy_config(world).dataloader_train.max_samples_per_batch
    assert f"(now {now})" in after or "model.config" in after


def test_an_error_that_is_not_known_says_no_more(train: Any) -> None:
    said = train(RuntimeError("seven"))
    assert said.endswith("RuntimeError: the step failed\n")


def test_an_error_of_a_loader_worker_is_explained(train: Any) -> None:
    error = RuntimeError("in a loader worker")
    error.add_note('in a loader worker:\nTraceback (most recent call last):\n  File "a.py", line 1\nMemoryError\n')
    assert "meaning: The operating system could not provide the requested memory" in train(error)


def test_a_loss_that_stays_bad_is_explained(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise FloatingPointError("step 3: the loss is not finite (nan): 1 unusable steps in a row")

    monkeypatch.setattr(Trainer, "_begin", fail)
    said = train(RuntimeError())
    assert "Traceback" not in said
    assert "try: Set optimizer.lr=" in said


def test_the_launcher_explains_a_process_that_was_killed(capsys: pytest.CaptureFixture) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    failure = ProcessFailure(local_rank=1, pid=os.getpid(), exitcode=-9, error_file="")
    assert launch.failure_code(ChildFailedError("train", {1: failure}), set()) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "worldsmith launch: rank 1 was ended by SIGKILL; it was the first to fail"
    assert said[1].startswith("meaning: The process was ended by signal 9 (SIGKILL)")
