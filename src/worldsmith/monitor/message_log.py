"""`messages.jsonl`: what a run says, one JSON object per line: time, step, level, text."""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from worldsmith.config.errors import describe_error
from worldsmith.files.lines import append_line


class MessageLog(logging.Handler):
    """Within its block, which may be entered again, it keeps the records of `worldsmith` from INFO on.

    Until `begin` they wait in memory, so that a start that is refused leaves nothing behind. An exception that leaves
    the block is a message, too. One that cannot be written, as on a full disk, is left out. Where nobody else listens,
    warnings reach the standard error as they do without it.
    """

    def __init__(self, path: Path | None, *, step: Callable[[], int]) -> None:
        """`path`: None keeps nothing. `step`: how many steps are done, asked when a message is written."""
        super().__init__(logging.INFO)
        self.path, self.step = path, step
        self.waiting: list[tuple[datetime.datetime, str, str]] | None = []

    def begin(self) -> None:
        """The run folder is this run's from now on."""
        waiting, self.waiting = self.waiting or [], None
        for message in waiting:
            self._write(*message)

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning" if record.levelno > logging.INFO else "info"
        try:
            self.add(level, self.format(record), datetime.datetime.fromtimestamp(record.created, datetime.UTC))
            if logging.lastResort and record.levelno >= logging.lastResort.level and self._is_alone():
                logging.lastResort.handle(record)
        except Exception:
            self.handleError(record)

    def add(self, level: str, text: str, time: datetime.datetime | None = None) -> None:
        message = time or datetime.datetime.now(datetime.UTC), level, text
        if self.waiting is None:
            self._write(*message)
        else:
            self.waiting.append(message)

    def _is_alone(self) -> bool:
        """Whether records of `worldsmith` reach no other handler, which Python would answer with its last resort."""
        logger: logging.Logger | None = logging.getLogger("worldsmith")
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True

    def _write(self, time: datetime.datetime, level: str, text: str) -> None:
        line = {"time": time.isoformat(timespec="milliseconds"), "step": self.step(), "level": level, "text": text}
        assert self.path is not None
        with suppress(OSError):  # to say so would be a message, too
            append_line(self.path, json.dumps(line, ensure_ascii=False))

    def __enter__(self) -> MessageLog:
        if self.path is not None:
            logging.getLogger("worldsmith").addHandler(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        logging.getLogger("worldsmith").removeHandler(self)
        if error is not None and self.path is not None:
            self.add("error", describe_error(error))
