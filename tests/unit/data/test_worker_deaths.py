"""Worker processes that are killed, or that a clip kills, cost neither the run nor a sample."""

from __future__ import annotations

import errno
import faulthandler
import gc
import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from worldsmith.data.clips import clip_maker
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.stream import workers
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.quarantine import Quarantine


def make(folder: Path, workers: int, *, prefetch: int = 2, **runtime: object) -> VideoLoader:
    """A loader of packs of one sample."""
    config = VideoLoader.Config(max_samples_per_batch=1, num_workers=workers, prefetch_factor=prefetch)
    config.dataset.path, config.dataset.resolution, config.dataset.min_frames = str(folder), "64", 5
    return config.build(grid=LatentGrid(4, 16, 2), tokenizer=lambda caption: list(caption.encode())[:12], **runtime)


def facts(pack: list) -> list[tuple]:
    return [(s.key, s.position, s.caption, s.video.numpy().tobytes()) for s in pack]


def own_workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    """Other tests' processes do not count; own ones are gone soon after the loader."""
    before = {child.pid for child in own_workers()}
    yield
    gc.collect()  # the traceback of an error keeps its loader
    deadline = time.monotonic() + 60
    while left := {child.pid for child in own_workers()} - before:
        assert time.monotonic() < deadline, f"{left} are left"
        time.sleep(0.05)


def test_workers_that_are_killed_change_nothing(clips: Callable, caplog: pytest.LogCaptureFixture) -> None:
    """At random moments, also within a sample and two at once: the packs are those of a loader without workers."""
    folder, chance = clips(7), random.Random(3)
    expected = [facts(pack) for pack in islice(make(folder, 0), 40)]
    before = {child.pid for child in own_workers()}
    loader, packs, killed = make(folder, 2), [], set()
    for pack in islice(loader, 40):
        packs.append(facts(pack))
        if len(packs) % 2:
            alive = [w for w in own_workers() if w.pid not in before]  # on a busy machine one may still be starting
            for worker in chance.sample(alive, min(len(alive), chance.choice([1, 2]))):
                worker.kill()
                killed.add(worker.pid)
            time.sleep(chance.random() * 0.02)
    assert packs == expected
    # The last deaths are not noticed: the samples that these workers have sent were enough.
    assert len(killed) - 4 <= loader.counts["workers_died"] <= len(killed)
    assert not loader.quarantine.keys
    said = [r.getMessage() for r in caplog.records if "loader worker" in r.getMessage()]
    assert len(said) == 4
    assert re.fullmatch(
        r"\[E104\] loader worker \d+ was killed by SIGKILL while it was processing c\d_w0; a new worker "
        r"continues with that sample "
        r"\(death 1\); if memory is short, lower num_workers or prefetch_factor of the data loader",
        said[0],
    )
    assert "(death 10)" in said[3]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
@pytest.mark.parametrize("prefetch", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_clip_that_kills_its_reader_is_left_out_and_named(
    clips: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, prefetch: int
) -> None:
    """A decoder that crashes, or takes all memory, ends its process, not the run; the other clips all come."""
    read, main = clip_maker.read_frames, os.getpid()

    def read_or_die(path: str, *args: object, **kwargs: object) -> object:
        if path.endswith("c2.mp4"):
            assert os.getpid() != main
            faulthandler.disable()
            os.kill(os.getpid(), number)
        return read(path, *args, **kwargs)

    folder = clips(6)
    expected = [s.key for (s,) in islice(make(folder, 0), 24) if s.key != "c2_w0"]
    monkeypatch.setattr(clip_maker, "read_frames", read_or_die)
    monkeypatch.setattr(workers, "PAUSE", 0.01)
    loader = make(folder, 2, prefetch=prefetch, quarantine=Quarantine(tmp_path / "run"))
    assert [sample.key for (sample,) in islice(loader, len(expected))] == expected
    (line,) = (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["key"], entry["reason"]) == ("c2_w0", "crashes_worker")
    assert f"was killed by {number.name} while it read this sample" in entry["detail"]


def test_killed_a_few_times_at_one_sample_is_not_the_sample(clips: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes the memory: the kernel kills the workers. Only the fifth death at a sample is held against it."""
    monkeypatch.setattr(workers, "PAUSE", 0.01)
    loader = make(clips(3), 1)
    monkeypatch.setattr(workers.Worker, "receive", dying(workers.Worker.receive, 4))
    assert len(list(islice(loader, 3))) == 3
    assert loader.counts["workers_died"] == 4
    assert not loader.quarantine.keys


def dying(receive: Callable, times: int) -> Callable:
    """Kills the worker the first times that it is asked."""
    left = iter(range(times))

    def kill_and_receive(self: workers.Worker) -> object:
        if next(left, None) is not None:
            self._process.kill()
            self._process.join()
            while not exhausted(self._samples):
                pass
        return receive(self)

    return kill_and_receive


def exhausted(pipe: Connection) -> bool:
    """Reads away what is in the pipe."""
    try:
        pipe.recv_bytes()
    except (EOFError, OSError):
        return True
    return False


def test_what_a_worker_raises_is_no_death(clips: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in the program is not tried again; the error says where it happened."""

    def fail(*args: object, **kwargs: object) -> None:
        raise LookupError("a mistake")

    monkeypatch.setattr(clip_maker, "read_frames", fail)
    loader = make(clips(3), 1)
    with pytest.raises(LookupError, match="a mistake") as raised:
        next(iter(loader))
    assert "in fail" in raised.value.__notes__[0]
    assert loader.counts["workers_died"] == 0


def test_a_worker_that_cannot_be_started_says_why(clips: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a dead one is to be replaced on a machine whose memory is full."""

    def fork() -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    packs = iter(make(clips(3), 1))
    next(packs)
    monkeypatch.setattr(os, "fork", fork)
    for child in own_workers():
        child.kill()
    with pytest.raises(DataError, match=r"cannot be started \(Cannot allocate memory\).*lower num_workers or"):
        list(islice(packs, 10))


def test_an_error_that_cannot_travel_is_told_as_another_one() -> None:
    class LocalError(Exception):
        pass

    try:
        raise LocalError("here")
    except LocalError as error:
        told = workers.portable(error)
    assert type(told) is RuntimeError
    assert "LocalError: here" in str(told)


def test_every_end_has_words() -> None:
    """Also a signal without a name."""
    said = [str(workers.DeadWorkerError(7, code)) for code in (-11, -40, 3)]
    ends = ("was killed by SIGSEGV", "ended with exit code -40", "ended with exit code 3")
    assert said == [f"loader worker 7 {end}" for end in ends]


def test_a_worker_holds_only_so_many_samples(clips: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read = clip_maker.read_frames

    def read_and_tell(path: str, *args: object, **kwargs: object) -> object:
        with (tmp_path / "reads").open("a") as reads:
            reads.write("x")
        return read(path, *args, **kwargs)

    monkeypatch.setattr(clip_maker, "read_frames", read_and_tell)
    packs = iter(make(clips(6, lengths=(17,)), 1, prefetch=3))
    next(packs)
    deadline = time.monotonic() + 60
    while len((tmp_path / "reads").read_text()) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    assert len((tmp_path / "reads").read_text()) == 4
