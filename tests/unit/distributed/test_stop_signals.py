"""What asks a run to stop, and what does not interrupt its last save."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worldsmith.distributed import stop_signals
from worldsmith.distributed.stop_signals import PREEMPTED, STOP_NOTICE, StopSignals


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
        stop.remove_stop_file()
        assert stop.asked is None
        stop.remove_stop_file()


def test_a_folder_of_that_name_counts_and_is_removed_unless_it_holds_something(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "STOP"
    place.mkdir()
    with StopSignals(place) as stop:
        assert stop.asked == f"the file {place}"
        stop.remove_stop_file()
        assert not place.exists()
        (place / "kept").mkdir(parents=True)
        stop.remove_stop_file()
    assert (place / "kept").is_dir()
    assert caplog.messages == [
        f"{place} cannot be removed, so the next start would stop as well; remove it: Directory not empty"
    ]


def test_a_terminal_that_is_closed_asks_for_a_stop_and_takes_no_more_output(tmp_path: Path) -> None:
    """What is printed between the signal and the save must not fail, and the exit code stays the run's own."""
    screen, terminal = pty.openpty()
    ready, tell = os.pipe()  # not the terminal: its reader gets the first bytes of a write that is still going on
    program = f"""
import os, sys, time
from worldsmith.distributed.stop_signals import StopSignals
with StopSignals() as stop:
    os.write({tell}, b"ready")
    while stop.asked is None:
        time.sleep(0.01)
    print("a last step", flush=True)
    print("a last step", file=sys.stderr, flush=True)
    open({str(tmp_path / "saved")!r}, "w").write(stop.asked)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=terminal, stderr=terminal, pass_fds=[tell],
        preexec_fn=lambda: handle(signal.SIG_DFL),
    )  # fmt: skip
    for theirs in (terminal, tell):
        os.close(theirs)
    assert os.read(ready, 5) == b"ready"
    for ours in (screen, ready):
        os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(240) == 0
    assert (tmp_path / "saved").read_text() == "SIGHUP"


def handle(how: signal.Handlers) -> None:
    signal.signal(signal.SIGHUP, how)


def test_what_nohup_has_started_goes_on() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            send(signal.SIGHUP)
            assert stop.asked is None
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_before_there_is_something_to_save_a_signal_ends_the_process(number: int) -> None:
    program = f"""
import os, signal
from worldsmith.distributed.stop_signals import StopSignals, exit_when_asked
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with exit_when_asked():
    with StopSignals() as stop:
        os.kill(os.getpid(), {int(number)})
        assert stop.asked
    os.kill(os.getpid(), {int(number)})
"""
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    assert done.returncode == PREEMPTED
    assert done.stderr == f"stopped by {signal.Signals(number).name} with no progress to save\n"


def test_ctrl_c_is_acknowledged_at_once_and_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Other signals, of which nobody waits for an answer at a terminal, print nothing."""
    with StopSignals(notice="Stopping.") as stop:
        send(signal.SIGINT)
        send(signal.SIGINT)
        assert stop.asked == "SIGINT"
    assert capfd.readouterr().err == "\nStopping.\n"
    with StopSignals(notice="Stopping."):
        send(signal.SIGTERM)
    assert capfd.readouterr().err == ""


def test_the_answer_to_ctrl_c_fits_a_narrow_terminal() -> None:
    assert max(map(len, STOP_NOTICE.splitlines())) <= 60
