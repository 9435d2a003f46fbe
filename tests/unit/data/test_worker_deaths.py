"""Worker processes that are killed, or that a clip kills, cost neither the run nor a sample."""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import psutil
import pytest
import torch

from worldsmith.data import sample_maker
from worldsmith.data.loader import PackingDataLoader
from worldsmith.data.quarantine import Quarantine


def make(folder: Path, workers: int, **runtime: object) -> PackingDataLoader:
    config = PackingDataLoader.Config(max_sequence_length=120, num_workers=workers)
    config.dataset.path, config.dataset.resolution, config.dataset.min_frames = str(folder), "64", 5
    return config.build(tokenizer=lambda caption: list(caption.encode())[:12], **runtime)


def facts(pack: list) -> list[tuple]:
    return [(s.key, s.position, s.caption, s.video.numpy().tobytes()) for s in pack]


def own_workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    """Other tests' processes do not count; own ones are gone soon after the loader."""
    before = {child.pid for child in own_workers()}
    yield
    gc.collect()  # the traceback of a test that has failed keeps its loader
    deadline = time.monotonic() + 60
    while left := {child.pid for child in own_workers()} - before:
        assert time.monotonic() < deadline, f"{left} are left"
        time.sleep(0.05)


def test_workers_that_are_killed_change_nothing(clips: Callable, caplog: pytest.LogCaptureFixture) -> None:
    """At random moments, also two at once: the packs are those of a loader without workers, and deaths are counted."""
    folder, chance = clips(7), random.Random(3)
    expected = [facts(pack) for pack in islice(make(folder, 0), 24)]
    before = {child.pid for child in own_workers()}
    loader, packs = make(folder, 2), []
    for pack in islice(loader, 24):
        packs.append(facts(pack))
        if len(packs) % 4 == 1:
            for worker in chance.sample([w for w in own_workers() if w.pid not in before], chance.choice([1, 2])):
                worker.kill()
            time.sleep(chance.random() * 0.05)
    assert packs == expected
    assert loader.counts["workers_died"] == 6
    said = [r.getMessage() for r in caplog.records if "worker" in r.getMessage()]
    assert len(said) == 3
    assert "is killed by signal: Killed; new worker processes go on at the same sample" in said[0]
    assert "further ones are only counted" in said[2]


def test_a_death_is_heard_of_where_the_next_sample_is_asked_for(clips: Callable) -> None:
    """PyTorch's own handler would raise in the line that is running, such as one of the optimizer or of a save."""
    loader = make(clips(5), 2)
    packs = iter(loader)
    next(packs)
    for worker in own_workers():
        worker.kill()
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        time.sleep(0.01)  # gives every handler its chance
    assert loader.counts["workers_died"] == 0
    next(packs)
    assert loader.counts["workers_died"] > 0


def test_a_clip_that_kills_its_reader_is_left_out_and_named(
    clips: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder that crashes ends its process, not the run; the other clips all come."""
    read = sample_maker.read_frames

    def read_or_die(path: str, *args: object, **kwargs: object) -> object:
        if path.endswith("c2.mp4"):
            assert torch.utils.data.get_worker_info() is not None
            os.kill(os.getpid(), signal.SIGSEGV)
        return read(path, *args, **kwargs)

    monkeypatch.setattr(sample_maker, "read_frames", read_or_die)
    loader = make(clips(6), 2, quarantine=Quarantine(tmp_path / "run"))
    read_keys: set[str] = set()
    packs = iter(loader)
    while len(read_keys) < 5 or not loader.quarantine.keys:
        read_keys |= {sample.key for sample in next(packs)}
    assert read_keys == {f"c{i}_w0" for i in (0, 1, 3, 4, 5)}
    (line,) = (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["key"], entry["reason"]) == ("c2_w0", "crashes_worker")
    assert "killed by signal: Segmentation fault" in entry["detail"]


def test_what_a_worker_raises_is_no_death(clips: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in the program is not tried again."""

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(sample_maker, "read_frames", fail)
    loader = make(clips(3), 1)
    with pytest.raises(RuntimeError, match="a mistake") as raised:
        next(iter(loader))
    traceback.clear_frames(raised.tb)  # the iterator ends its worker in order, not with the other garbage
    assert loader.counts["workers_died"] == 0


def test_memory_that_is_short_is_advice_not_a_verdict(clips: Callable, caplog: pytest.LogCaptureFixture) -> None:
    loader = make(clips(3), 1)
    packs = iter(loader)
    next(packs)
    with caplog.at_level(logging.WARNING):
        own_workers()[-1].kill()
        for _ in range(3):
            next(packs)
    assert "If memory is short, lower dataloader_train.num_workers or prefetch_factor" in caplog.text
    assert not loader.quarantine.keys
