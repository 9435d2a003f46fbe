"""What somebody reads stays until it is read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worldsmith.files.locks import lease, release_leases, take_unleased

READ = """
import sys
from pathlib import Path
from worldsmith.files.locks import lease
print(lease(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@contextmanager
def reader(file: Path) -> Iterator[bool]:
    """Another process that reads; whether it got its lease."""
    command = [sys.executable, "-c", READ, str(file)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline() == "True\n"
    finally:
        process.communicate()


def test_readers_share_and_the_owner_waits(tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    file.touch()
    assert lease(file)
    with reader(file) as got_it:
        assert got_it
        release_leases()
        assert take_unleased(file) is None
    handle = take_unleased(file)
    assert handle is not None
    with reader(file) as got_it:
        assert not got_it  # it is being removed
    os.close(handle)


def test_what_is_gone_cannot_be_leased_and_may_be_removed(tmp_path: Path) -> None:
    assert not lease(tmp_path / "none")
    os.close(take_unleased(tmp_path / "none"))
