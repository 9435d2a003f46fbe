"""What a process prints is in its log as well, and the stream is what it was."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest

from worldsmith.monitor.process_log import CopiedStream, ProcessLog


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_has_whole_lines_as_a_terminal_would_show_them(tmp_path: Path) -> None:
    log, terminal = ProcessLog(), Terminal()
    stream = CopiedStream(terminal, log)
    print("before", file=stream)
    place = tmp_path / "logs/rank_00003.log"
    log.begin(place, "--- started")
    said = "\x1b[33mcolour\x1b[0m\nstep 1\r\x1b[2Kstep 2", "\r\x1b[2Kabove\nstep", " 3\r\n", "bad \udcff\n", "half"
    for text in said:
        assert stream.write(text) == len(text)
    lines = ["--- started", "before", "colour", "above", "step 3", "bad \\udcff"]
    assert place.read_text().splitlines() == lines
    assert terminal.getvalue() == "before\n" + "".join(said)
    assert stream.isatty()


def test_another_start_is_added_to_the_file(tmp_path: Path) -> None:
    for start in ("first", "second"):
        log = ProcessLog()
        log.begin(tmp_path / "logs/rank_00000.log", f"--- {start}")
        log.add(start)
    assert (tmp_path / "logs/rank_00000.log").read_text().split("\n") == [
        *("--- first", "first", "--- second", "second", "")
    ]


@pytest.mark.parametrize("why", ["a full disk", "no folder"])
def test_what_cannot_be_written_is_said_once_and_ends_nothing(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").touch()
    log, terminal = ProcessLog(), io.StringIO()
    stream = CopiedStream(terminal, log)
    monkeypatch.setattr("sys.__stderr__", terminal)
    log.begin(Path("/dev/full") if why == "a full disk" else tmp_path / "logs/rank_00000.log", "--- started")
    print("one", file=stream)
    print("two", file=stream)
    (first, *rest) = terminal.getvalue().splitlines()
    assert ("No space left" if why == "a full disk" else "File exists") in first
    assert rest == ["one", "two"]


class Full(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_is_full_under_standard_error_too_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.__stderr__", Full())
    ProcessLog().begin(Path("/dev/full"), "--- started")
