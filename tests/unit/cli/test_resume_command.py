"""The command that resumes a run, as a shell reads it."""

from __future__ import annotations

import shlex
import sys

import pytest

from worldsmith.cli.launch import share_run_name
from worldsmith.cli.train import resume_command

WORDS = ["train", "moving_shapes", "--trainer.max_iter", "5", "--", "custom.text=it's a b"]


def test_the_command_is_the_one_that_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLDSMITH_COMMAND", raising=False)
    monkeypatch.setattr(sys, "argv", ["/some where/worldsmith", *WORDS])
    assert shlex.split(resume_command("")) == ["/some where/worldsmith", *WORDS]
    named = ["train", "moving_shapes", "--trainer.max_iter", "5", "--job.name", "2026 a", "--", "custom.text=it's a b"]
    assert shlex.split(resume_command("2026 a")) == ["/some where/worldsmith", *named]
    monkeypatch.setattr(sys, "argv", ["/src/worldsmith/__main__.py", "train", "x"])
    assert shlex.split(resume_command("n")) == [sys.executable, "-m", "worldsmith", "train", "x", "--job.name", "n"]


def test_a_process_of_a_launch_gives_the_command_of_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/x/worldsmith", "launch", "--nproc-per-node", "2", "train", "a b"])
    with share_run_name():
        monkeypatch.setattr(sys, "argv", ["launched.py", "train", "a b"])
        expected = ["/bin/x/worldsmith", "launch", "--nproc-per-node", "2", "train", "a b", "--job.name", "n"]
        assert shlex.split(resume_command("n")) == expected
