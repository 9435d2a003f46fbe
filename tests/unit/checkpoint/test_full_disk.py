"""A full disk, a real one of a few MiB: nothing complete is lost, nothing half is left, and the message helps."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
from pathlib import Path
import torch
from worldsmith.checkpoint import checkpointer
from worldsmith.checkpoint.manifest import find_damage
from worldsmith.checkpoint.save_error import SaveError

folder, background = Path(sys.argv[1]) / "checkpoints", sys.argv[2] == "True"
one = checkpointer.Checkpointer.Config(init="scratch").build(folder=folder)
small = {"net.a": torch.randn(200_000)}
large = {**small, "net.b": torch.randn(800_000)}


def save(iteration, model):
    try:
        one.save(iteration, {"model": model}, background=background)
        one.settle()
    except SaveError as error:
        return str(error)


def state():
    names = sorted(os.listdir(folder))
    assert all(find_damage(folder / name) is None for name in names if name.startswith("iter_"))
    return names, one.latest().name


assert save(1, small) is None and save(2, small) is None
before = state()
predicted = save(3, large)
assert "there is not enough space" in predicted, predicted
checkpointer.require_space = lambda folder, needed: None  # as if another program took the space meanwhile
met = save(3, large)
assert "No space left on device" in met, met
for message in (predicted, met):
    assert "iter_000000003" in message and "MiB are free" in message and "keep_latest_k" in message, message
assert state() == before == (["iter_000000001", "iter_000000002", "latest_checkpoint.txt"], "iter_000000002")
assert save(4, small) is None
assert state()[1] == "iter_000000004"
"""


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


@pytest.mark.parametrize("background", [False, True])
def test_full_disk(tmp_path: Path, background: bool) -> None:
    """Predicted before a byte is written, and met in the middle of the writing."""
    namespace = mount_command()
    if namespace is None:
        pytest.skip("a tmpfs can be mounted here neither as root nor in a user namespace")
    script, disk = tmp_path / "script.py", tmp_path / "disk"
    script.write_text(SCRIPT)
    disk.mkdir()
    shell = 'mount -t tmpfs -o size=4m none "$0" && exec "$@"'
    command = [*namespace, "sh", "-c", shell, disk, sys.executable, "-W", "ignore", script, disk, str(background)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
