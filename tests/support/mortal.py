"""Kills a run (SIGKILL) right before one of the file operations of a save, in whatever thread or process it is."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import struct
import threading
from collections.abc import Callable
from typing import Any

from worldsmith.checkpoint.dcp import dcp_folder as dcp
from worldsmith.files import checksum_manifest

OPERATIONS = (
    (dcp, "save_part"),
    (checksum_manifest, "summarize_file"),
    (os, "replace"),
    (os, "fsync"),
    (shutil, "rmtree"),
)


class Mortal:
    """To be made before the process that writes is forked; nothing happens until `arm` is called."""

    def __init__(self) -> None:
        self.run, self.lock = os.getpid(), threading.Lock()
        self.left = mmap.mmap(-1, 8)  # shared with forks
        for module, name in OPERATIONS:
            setattr(module, name, self.watched(getattr(module, name)))

    def arm(self, number: int) -> None:
        """The run dies before the `number`-th file operation from now."""
        self.left[:] = struct.pack("q", number)

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count()
            return function(*args, **kwargs)

        return call

    def count(self) -> None:
        with self.lock:
            (left,) = struct.unpack("q", self.left[:])
            self.left[:] = struct.pack("q", left - 1)
            if left == 1:
                os.kill(self.run, signal.SIGKILL)
                signal.pause()  # the process that writes dies with the run
