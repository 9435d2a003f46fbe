"""A mistake of all processes of a launch is said by one of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worldsmith.cli.main import fail
from worldsmith.cli.said import OUTCOME


def test_the_same_mistake_is_said_by_the_first_process_of_a_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another one is said by whoever makes it; each command that is not launched speaks for itself."""
    monkeypatch.setenv(OUTCOME, str(tmp_path / "exit_code"))
    for message in ("the folder is wrong", "the folder is wrong", "rank 1 has no disk"):
        child = os.fork()
        if child == 0:
            os._exit(fail(message))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert capfd.readouterr().err.count("the folder is wrong") == 1
    monkeypatch.delenv(OUTCOME)
    assert [fail("the folder is wrong") for _ in range(2)] == [2, 2]
    assert capfd.readouterr().err.count("the folder is wrong") == 2
