"""`status.json`: where a run stands, written anew every few seconds while its process lives."""

from __future__ import annotations

import datetime
import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from worldsmith.files.atomic import replacing

logger = logging.getLogger(__name__)


class StatusFile:
    """Asks `read` for the status at once, every `seconds` in a thread, and a last time when it is closed.

    The file is replaced as a whole. When it cannot be written, as on a full disk, that is said once and tried again.
    """

    def __init__(self, path: Path, read: Callable[[], Mapping[str, Any]], *, seconds: float) -> None:
        self.path, self.read, self.seconds = path, read, seconds
        self.failed = False
        self._closed = threading.Event()
        self.write()
        self._thread = threading.Thread(target=self._beat, name="status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self.write()

    def write(self) -> None:
        """Writes the present status, and when that was."""
        status = {**self.read(), "updated": now()}
        try:
            with replacing(self.path, durable=False) as aside:
                aside.write_text(json.dumps(status, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            if not self.failed:
                logger.warning("%s cannot be written, the run goes on: %s", self.path, error)
            self.failed = True

    def _beat(self) -> None:
        while not self._closed.wait(self.seconds):
            self.write()


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
