"""What a launcher says while it waits for other machines."""

from __future__ import annotations

import logging
import queue
import time
from argparse import Namespace
from types import SimpleNamespace

import pytest

from worldsmith.cli import launch
from worldsmith.distributed.launcher_messages import LauncherServer


def test_whom_a_machine_waits_for_before_its_processes_start_and_after_their_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    children: list[int] = []
    said = ""

    def until(words: str) -> str:
        nonlocal said
        deadline = time.monotonic() + 20
        while words not in said and time.monotonic() < deadline:
            time.sleep(0.01)
            said += capsys.readouterr().err
        return said

    monkeypatch.setattr(launch, "FIRST_REPORT_AFTER", 0.02)
    monkeypatch.setattr(launch.psutil, "Process", lambda: SimpleNamespace(children=lambda: list(children)))
    desk = LauncherServer()
    with launch.report_waiting(Namespace(rdzv_endpoint="", master_addr="a", master_port=1), 3, 3, desk):
        assert "waiting for 2 other machines to connect at a:1" in until("to connect")
        children.append(1)
        time.sleep(0.1)
        desk.exit_code = 75
        time.sleep(0.1)
        assert "have ended" not in said + capsys.readouterr().err
        children.clear()
        assert "have ended; waiting for a report from 2 other machines" in until("have ended")


def test_launchers_of_other_machines_that_are_no_more_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have `GIVE_UP` seconds from the end of all processes here."""
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    monkeypatch.setattr(launch, "FIRST_REPORT_AFTER", 0.02)
    monkeypatch.setattr(launch, "GIVE_UP", 0.5)
    monkeypatch.setattr(launch.psutil, "Process", lambda: SimpleNamespace(children=lambda: []))
    monkeypatch.setattr(launch.os, "_exit", left.put)
    desk = LauncherServer()
    with launch.report_waiting(Namespace(rdzv_endpoint="", master_addr="a", master_port=1), 2, 2, desk):
        begun = time.monotonic()
        desk.exit_code = 75
        assert left.get(timeout=20) == 75
        assert time.monotonic() - begun > 0.5
    assert "no report from 1 other machine" in capsys.readouterr().err


@pytest.mark.parametrize(("codes", "said"), [((1, -9), "was ended by SIGKILL"), ((-15, 1), "ended with exit code 1")])
def test_the_rank_that_failed_is_named_and_not_its_partner_that_noticed_or_was_ended_for_it(
    codes: tuple[int, int], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = {rank: SimpleNamespace(exitcode=code, timestamp=1) for rank, code in enumerate(codes)}
    failures[1].signal_name = lambda: "SIGKILL"
    assert launch.failure_code(SimpleNamespace(failures=failures), set()) == 1
    assert f"rank 1 {said}" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "shown"), [(75, False), (1, True), (-9, True)])
def test_torchrun_calls_no_process_failed_that_was_asked_to_stop(code: int, shown: bool) -> None:
    text = "failed (exitcode: %s) local_rank: %s (pid: %s) of binary: %s"
    record = logging.LogRecord("api", logging.ERROR, "api.py", 1002, text, (code, 0, 14965, "python"), None)
    assert launch.is_failure_record(record) is shown
