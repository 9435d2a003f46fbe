from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

PROGRAM = """
import sys, time
from worldsmith.data.stream.loader import PackingDataLoader
config = PackingDataLoader.Config(max_samples_per_batch=1, num_workers=2, prefetch_factor=int(sys.argv[2]))
config.dataset.path, config.dataset.resolution, config.dataset.min_frames = sys.argv[1], "64", 5
packs = iter(config.build(tokenizer=lambda text: [1]))
next(packs)
print("ready", flush=True)
time.sleep(120)
"""


ASKED = """
import sys, time
from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.training.stop_signals import StopSignals
config = PackingDataLoader.Config(max_samples_per_batch=1, num_workers=2, prefetch_factor=int(sys.argv[2]))
config.dataset.path, config.dataset.resolution, config.dataset.min_frames = sys.argv[1], "64", 5
with StopSignals() as stop:
    packs = iter(config.build(tokenizer=lambda text: [1]))
    next(packs)
    print("ready", flush=True)
    while stop.asked is None:
        time.sleep(0.01)
    time.sleep(0.5)
    print(stop.asked, sum(len(next(packs)) for _ in range(20)))
"""


def start(program: str, folder: Path, prefetch: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(prefetch)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip


def assert_ended(workers: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in workers if alive(pid)]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("prefetch", [2, 64])
def test_workers_end_when_the_training_process_is_killed(clips: Callable, prefetch: int) -> None:
    """SIGKILL of the parent, also while the workers are stuck in a full pipe (64 clips prefetched): none is left."""
    parent = start(PROGRAM, clips(3), prefetch)
    try:
        assert parent.stdout.readline() == "ready\n"
        workers = [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
        assert len(workers) >= 2
        time.sleep(0.5)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert_ended(workers)


def test_a_signal_to_the_whole_job_leaves_the_workers_to_the_run(clips: Callable) -> None:
    """As schedulers and terminals send it: the run remembers it, reads on, and its workers end with it."""
    parent = start(ASKED, clips(3), 2)
    try:
        assert parent.stdout.readline() == "ready\n"
        workers = [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT):
            os.killpg(parent.pid, number)
            time.sleep(0.1)
        out, _ = parent.communicate(timeout=100)
    finally:
        parent.kill()
    assert (out, parent.returncode) == ("SIGTERM 20\n", 0)
    assert_ended(workers)


def test_the_config_module_imports_neither_torch_nor_a_decoder() -> None:
    """Config errors and help must answer at once."""
    program = (
        "import sys, worldsmith.data.stream.loader, worldsmith.data.clips.video_dataset, worldsmith.data.clips.summary;"
        "print([m for m in ('torch', 'av', 'numpy', 'transformers') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"
