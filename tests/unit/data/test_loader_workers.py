from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import psutil
import pytest
import torch
from tiny_runs import make_tokenizer

from worldsmith.data.stream import workers
from worldsmith.data.stream.sample_maker import ThroughPipe
from worldsmith.data.stream.workers import receive_object, send_object

PROGRAM = """
import sys, time
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_loader import VideoLoader
config = VideoLoader.Config(max_samples_per_batch=1, num_workers=2, prefetch_factor=int(sys.argv[2]))
config.dataset.path, config.dataset.resolution, config.dataset.min_frames = sys.argv[1], "64", 5
packs = iter(config.build(grid=LatentGrid(4, 16, 2), tokenizer=lambda text: [1]))
next(packs)
print("ready", flush=True)
time.sleep(120)
"""


ASKED = """
import sys, time
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.distributed.stop_signals import StopSignals
config = VideoLoader.Config(max_samples_per_batch=1, num_workers=2, prefetch_factor=int(sys.argv[2]))
config.dataset.path, config.dataset.resolution, config.dataset.min_frames = sys.argv[1], "64", 5
with StopSignals() as stop:
    packs = iter(config.build(grid=LatentGrid(4, 16, 2), tokenizer=lambda text: [1]))
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
        "import sys, worldsmith.data.stream.loader, worldsmith.data.clips.video_loader;"
        "print([m for m in ('torch', 'av', 'numpy', 'transformers') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"


TOKENISES = """
import os, sys, time
from itertools import islice
import psutil
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer
tokenizer = TextTokenizer(TextTokenizer.Config(path=sys.argv[2]))
tokenizer.tokenizer(["threads that tokenise a batch"] * 2000)
def load(workers):
    config = VideoLoader.Config(max_samples_per_batch=1, num_workers=workers)
    config.dataset.path, config.dataset.resolution, config.dataset.min_frames = sys.argv[1], "64", 5
    encode = lambda text: tokenizer.tokenizer([text] * 40)["input_ids"][-1]
    return config.build(grid=LatentGrid(4, 16, 2), tokenizer=encode)
expected = [pack[0].text_ids for pack in islice(load(0), 12)]
packs, found = iter(load(2)), []
for number in range(12):
    found.append(next(packs)[0].text_ids)
    if number % 4 == 1:
        psutil.Process().children()[0].kill()
print(found == expected and len(set(map(tuple, found))) > 1)
"""


def test_workers_tokenise_after_the_tokenizers_threads_have_run(clips: Callable, tmp_path: Path) -> None:
    """A fork takes no thread along: a tokenizer that waits for its threads would wait for ever."""
    make_tokenizer(tmp_path / "tokenizer")
    done = subprocess.run(
        [sys.executable, "-c", TOKENISES, str(clips(3)), str(tmp_path / "tokenizer")],
        capture_output=True, text=True, timeout=250,
        env={**os.environ, "RAYON_NUM_THREADS": "4", "TOKENIZERS_PARALLELISM": "true"},
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


@dataclass(frozen=True, slots=True)
class Arrays(ThroughPipe):
    small: torch.Tensor
    large: torch.Tensor
    other: torch.Tensor


@pytest.mark.parametrize("shared", [True, False])
def test_large_arrays_arrive_in_shared_memory_and_can_be_written(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is sent before it is read, so that the sender may have ended; without such files the pipe has them."""
    if not shared:
        monkeypatch.setattr(workers, "memory_file", lambda: None)
    receiver, sender = multiprocessing.Pipe()
    sent = Arrays(torch.arange(3), torch.rand(5, 1 << 15), torch.arange(7, dtype=torch.uint8))
    thread = threading.Thread(target=lambda: (send_object(sender, sent, os.getpid()), sender.close()))
    thread.start()
    if shared:
        thread.join()
    found = receive_object(receiver)
    thread.join()
    for field in fields(Arrays):
        assert torch.equal(getattr(found, field.name), getattr(sent, field.name))
        getattr(found, field.name).add_(1)
    assert ("memfd:worldsmith-sample" in Path("/proc/self/maps").read_text()) == shared
    del found
    assert "memfd:worldsmith-sample" not in Path("/proc/self/maps").read_text()
    with pytest.raises(EOFError):
        receive_object(receiver)
