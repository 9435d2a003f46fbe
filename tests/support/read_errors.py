"""Files that the operating system cannot read: errors that are injected below every reader, and one that is real."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import pytest

CODES = [errno.ENOENT, errno.EACCES, errno.EIO, errno.ESTALE]
"""What a file gives that was removed, is not ours, lies on a damaged disk, or on a server that forgot it."""


def break_file(path: Path) -> None:
    """Puts a link to this process' memory in place of a file: it is opened, and reading its first byte fails (EIO)."""
    path.unlink(missing_ok=True)
    path.symlink_to("/proc/self/mem")


def fail(monkeypatch: pytest.MonkeyPatch, path: Path, code: int, *calls: str, passing: int = 0) -> None:
    """From the `passing`-th use on, these system calls (`stat`, `open`) on a file fail with the error `code`."""
    left = [passing]

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any, **kwargs: Any) -> Any:
            name = args[0] if args else kwargs.get("file")
            if isinstance(name, (str, Path)) and os.path.normpath(name) == str(path):
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(code, os.strerror(code), str(name))
            return call(*args, **kwargs)

        return checked

    if "stat" in calls:
        monkeypatch.setattr(os, "stat", failing(os.stat))
    if "open" in calls:
        for module, name in ((builtins, "open"), (io, "open"), (os, "open"), (av, "open")):
            monkeypatch.setattr(module, name, failing(getattr(module, name)))
