"""A disk that takes for ever to make a checkpoint durable: `worldsmith --import slow_disk train …`."""

from __future__ import annotations

import os
import time
from pathlib import Path

fsync = os.fsync


def fsync_slowly(handle: int) -> None:
    name = os.readlink(f"/proc/self/fd/{handle}")
    if "/checkpoints/" in name:
        Path(os.environ["SLOW_DISK"]).touch()
        time.sleep(600)
    fsync(handle)


os.fsync = fsync_slowly
