"""A real file system of a few MiB beside a script, which can fill it; and files that cannot grow any more."""

from __future__ import annotations

import functools
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@functools.cache
def mount_command() -> list[str] | None:
    """What gives a command a mount namespace in which it may mount a tmpfs; None when nothing does."""
    for command in (["unshare", "-m"], ["unshare", "-rm"]):
        probe = [*command, "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
        try:
            if subprocess.run(probe, capture_output=True).returncode == 0:
                return command
        except FileNotFoundError:
            return None
    return None


def run_beside_disk(folder: Path, script: str, *arguments: str, mebibytes: int) -> str:
    """Runs `script` with the small disk's folder and `arguments`; returns what it said on stderr. Skips without one."""
    namespace = mount_command()
    if namespace is None:
        pytest.skip("a tmpfs can be mounted here neither as root nor in a user namespace")
    file, disk = folder / "script.py", folder / "disk"
    file.write_text(script)
    disk.mkdir()
    shell = f'mount -t tmpfs -o size={mebibytes}m none "$0" && exec "$@"'
    command = [*namespace, "sh", "-c", shell, str(disk), sys.executable, "-W", "ignore", str(file), str(disk)]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes: the kernel writes a part, and then refuses (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
