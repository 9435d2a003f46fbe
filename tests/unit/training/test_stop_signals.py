"""What asks a run to stop, and what does not interrupt its last save."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from worldsmith.training import stop_signals
from worldsmith.training.stop_signals import StopSignals


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.01)


def test_a_warning_and_then_the_terms_end_do_not_interrupt() -> None:
    """Schedulers send SIGUSR1 some time ahead and SIGTERM later; the save between them must not be cut off."""
    with StopSignals() as stop:
        assert stop.asked is None
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
            send(number)
        assert stop.asked == "SIGUSR1"


def test_ctrl_c_that_arrives_twice_counts_once_and_a_later_one_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal sends SIGINT to all processes, and torchrun passes it on again."""
    with StopSignals() as stop:
        send(signal.SIGINT)
        send(signal.SIGINT)
        assert stop.asked == "SIGINT"
        monkeypatch.setattr(stop_signals, "SAME_PRESS", 0.0)
        with pytest.raises(KeyboardInterrupt, match="second SIGINT"):
            send(signal.SIGINT)


def test_a_file_counts_and_is_removed_when_honoured(tmp_path: Path) -> None:
    with StopSignals(tmp_path / "STOP") as stop:
        assert stop.asked is None
        (tmp_path / "STOP").touch()
        assert stop.asked == f"the file {tmp_path / 'STOP'}"
        stop.honour()
        assert stop.asked is None
        stop.honour()
