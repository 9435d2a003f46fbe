"""The loader over a data set that is no video: numbers, whose size is their value."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pytest

from worldsmith.config import Configurable
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.data.stream.quarantine import Quarantine, Rejection
from worldsmith.data.stream.sample_maker import SampleMaker, SampleResult, StreamDataset


@dataclass
class Number:
    key: str
    position: int
    num_tokens: int


class Numbers(Configurable, StreamDataset):
    class Config(Configurable.Config):
        values: list[int] = field(default_factory=list)

    name, limits = "the numbers", "All must be positive."

    def __init__(self, config: Config) -> None:
        self.values = config.values
        self.num_records = len(self.values)
        self.rejections: list[Rejection] = []

    def __len__(self) -> int:
        return len(self.values)

    def listing(self) -> Iterator[tuple[str, int]]:
        return ((str(value), value) for value in self.values)


class NumberMaker(SampleMaker[Number]):
    def make(self, position: int) -> SampleResult[Number]:
        value = self.dataset.values[self.index(position)]
        if value < 0:
            raise SampleError("negative", f"{value} is below 0")
        return SampleResult(Number(str(value), position, value), {"odd": f"{value} is odd"} if value % 2 else {})

    def reject(self, position: int, reason: str, detail: str) -> Rejection:
        return Rejection(f"number {self.index(position)}", reason, detail, "numbers")


class NumberLoader(PackingDataLoader):
    class Config(PackingDataLoader.Config):
        dataset: Numbers.Config = field(default_factory=Numbers.Config)

    def __init__(self, config: Config, *, quarantine: Quarantine | None = None, rank: int = 0, world_size: int = 1):
        maker = NumberMaker(config.dataset.build(), config)
        super().__init__(config, maker=maker, quarantine=quarantine, rank=rank, world_size=world_size)


def load(*values: int, quarantine: Quarantine | None = None, **changes: object) -> NumberLoader:
    settings = {"max_sequence_length": 10, "bad_samples_allowed": 8, "shuffle": False, **changes}
    return NumberLoader.Config(dataset=Numbers.Config(values=list(values)), **settings).build(quarantine=quarantine)


@pytest.mark.parametrize("workers", [0, 2])
def test_numbers_are_packed_and_resumed(workers: int) -> None:
    packs = [[s.num_tokens for s in pack] for pack in islice(load(4, 5, 6, 2), 4)]
    assert packs[0] == [4, 5]
    first = load(4, 5, 6, 2, num_workers=workers)
    head = [[s.num_tokens for s in pack] for pack in islice(first, 2)]
    second = load(4, 5, 6, 2, num_workers=workers)
    second.load_states([json.loads(json.dumps(first.state_dict()))])
    assert head + [[s.num_tokens for s in pack] for pack in islice(second, 2)] == packs


def test_what_cannot_be_used_is_listed_and_what_is_noted_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader = load(3, -1, 12, 5, 4, 2, quarantine=Quarantine(tmp_path), lookahead=1)
    (pack,) = islice(loader, 1)
    assert [s.num_tokens for s in pack] == [3, 5]
    assert loader.counts == {"samples": 3, "odd": 2}
    assert "3 is odd" in caplog.text
    assert "5 is odd" not in caplog.text
    listed = [json.loads(line) for line in (tmp_path / "quarantine.jsonl").read_text().splitlines()]
    assert [(line["key"], line["reason"], line["detail"]) for line in listed] == [
        ("number 1", "negative", "-1 is below 0"),
        ("number 2", "over_token_cap", "12 tokens; max_sequence_length is 10"),
    ]


def test_nothing_usable_ends_at_once() -> None:
    with pytest.raises(DataError, match=r"no sample of the numbers can be used: skipped: negative 2"):
        next(iter(load(-1, -2, max_bad_fraction=1.0)))
    with pytest.raises(DataError, match=r"the numbers has 0 records and no usable sample .* All must be positive"):
        load()


def test_a_sample_that_cannot_be_read_is_left_out_and_a_fault_of_the_process_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever a maker reads: an error number that is about a file is one of its sample."""

    def make(maker: NumberMaker, position: int) -> SampleResult[Number]:
        value = maker.dataset.values[maker.index(position)]
        if value == 3:
            raise OSError(code, os.strerror(code), "numbers/3")
        return SampleResult(Number(str(value), position, value))

    monkeypatch.setattr(NumberMaker, "make", make)
    code = errno.EIO
    packs = [[s.num_tokens for s in pack] for pack in islice(load(4, 3, 5, quarantine=Quarantine(tmp_path)), 1)]
    assert packs == [[4, 5]]
    (entry,) = map(json.loads, (tmp_path / "quarantine.jsonl").read_text().splitlines())
    assert (entry["reason"], entry["detail"]) == ("unreadable", "[Errno 5] Input/output error: 'numbers/3'")
    code = errno.EMFILE
    with pytest.raises(OSError, match="Too many open files"):
        next(iter(load(4, 3, 5)))
