"""`logs/rank_<5 digits>.log` of a run folder: output of each process, appended over all starts of the run."""

from __future__ import annotations

import datetime
import os
import re
import socket
import sys
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from worldsmith.config.write.values import escape_controls
from worldsmith.files.lines import append_line

FOLDER = "logs"
WAITING = 10_000
"""Max number of lines that are kept in memory until the run folder is known; older lines are dropped."""
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class ProcessLog:
    """Log file of a process; lines are kept in memory until `begin` sets its path.

    Lines that cannot be written, as on a full disk, are skipped with a single warning.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self._waiting: deque[str] = deque(maxlen=WAITING)
        self._warned = False
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def begin(self, path: Path, head: str) -> None:
        """Sets the path of the log file; writes the line `head`, then the lines that were kept in memory."""
        with self._lock:
            self.path = path
            lines = [head, *self._waiting]
            self._waiting.clear()
            for line in lines:
                self.add(line)

    def add(self, line: str) -> None:
        with self._lock:
            if self.path is None:
                self._waiting.append(line)
                return
            try:
                self.path.parent.mkdir(exist_ok=True)
                append_line(self.path, line.encode(errors="backslashreplace").decode())
            except OSError as error:
                problem = f"{self.path} is incomplete, lines could not be written: {error.strerror}; the run continues"
                if not self._warned:
                    self._warned = True
                    with suppress(OSError, ValueError):  # on the same full disk, or closed
                        print(problem, file=sys.__stderr__, flush=True)


class CopiedStream:
    """A text stream that also copies its lines to the log, as a terminal shows them.

    Overwritten progress-bar states and colors are not copied.
    """

    def __init__(self, stream: TextIO, log: ProcessLog) -> None:
        self._stream, self._log, self._rest = stream, log, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        self._rest = self._rest[self._rest.rfind("\r") + 1 :]
        for line in lines:
            self._log.add(escape_controls(TERMINAL_CODES.sub("", line.rstrip("\r").rpartition("\r")[2])))
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_log: ProcessLog | None = None


def copy_output() -> None:
    """Starts copying stdout and stderr of Python code in this process to its log; the terminal still gets them."""
    global _log
    _log = ProcessLog()
    sys.stdout, sys.stderr = CopiedStream(sys.stdout, _log), CopiedStream(sys.stderr, _log)  # type: ignore[assignment]


def begin_log(run_folder: Path, *, rank: int, size: int) -> None:
    """Starts the log file of this rank in the run folder; no effect without `copy_output`.

    The file gets a line about this start, then all output since `copy_output`.

    Args:
        run_folder: Run folder.
        rank: Index of this rank.
        size: Number of ranks.
    """
    if _log is None:
        return
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    head = f"--- started {now} on {socket.gethostname()}, process {os.getpid()}, rank {rank} of {size}"
    _log.begin(run_folder / FOLDER / f"rank_{rank:05d}.log", head)
