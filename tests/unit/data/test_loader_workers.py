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
from worldsmith.data.loader import PackingDataLoader
config = PackingDataLoader.Config(max_samples_per_batch=1, num_workers=2, prefetch_factor=int(sys.argv[2]))
config.dataset.path, config.dataset.resolution, config.dataset.min_frames = sys.argv[1], "64", 5
packs = iter(config.build(tokenizer=lambda text: [1]))
next(packs)
print("ready", flush=True)
time.sleep(120)
"""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("prefetch", [2, 64])
def test_workers_end_when_the_training_process_is_killed(clips: Callable, prefetch: int) -> None:
    """SIGKILL of the parent, also while the workers are stuck in a full pipe (64 clips prefetched): none is left."""
    folder: Path = clips(3)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(prefetch)], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert parent.stdout.readline() == "ready\n"
        workers = [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
        assert len(workers) >= 2
        time.sleep(0.5)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 15
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in workers if alive(pid)]


def test_the_config_module_imports_neither_torch_nor_a_decoder() -> None:
    """Config errors and help must answer at once."""
    program = (
        "import sys, worldsmith.data.loader, worldsmith.data.video_dataset, worldsmith.data.summary;"
        "print([m for m in ('torch', 'av', 'numpy', 'transformers') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"
