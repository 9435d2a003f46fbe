"""Several chat datasets combined into one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from itertools import accumulate, chain
from typing import Any, Self

from worldsmith.data.conversations.conversation import Turn
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset, with_system
from worldsmith.data.conversations.datasets.llava_onevision import LlavaOneVision
from worldsmith.data.data_report import DataFlag
from worldsmith.data.stream.quarantine import Rejection


class MixedDataset(ChatDataset):
    """Concatenation of several chat datasets, in the order of their names; an epoch has each conversation once."""

    class Config(ChatDataset.Config):
        datasets: dict[str, ChatDataset.Config] = field(default_factory=dict)
        """Chat datasets of any type by name; the keys of their conversations begin with this name."""

        def check(self) -> None:
            if not self.datasets:
                raise ValueError("a mixed dataset needs at least one dataset in `datasets`")
            for name, config in self.datasets.items():
                if isinstance(config, LlavaOneVision.Config) and config.streaming:
                    raise ValueError(f"datasets.{name}: a streamed dataset cannot be mixed; set its streaming = false")
            super().check()

        def with_optional_rates(self) -> Self:
            members = {name: member.with_optional_rates() for name, member in self.datasets.items()}
            return replace(self, datasets=members)

    config: Config

    def __init__(self, config: Config) -> None:
        """Reads all datasets; raises DataError if one of them cannot be read."""
        config.check()
        self.config = config
        self.members = {name: config.datasets[name].build() for name in sorted(config.datasets)}
        self.name = " + ".join(member.name for member in self.members.values())
        self.num_records = sum(member.num_records for member in self.members.values())
        self.rejections = [
            replace(rejection, key=f"{name}/{rejection.key}")
            for name, member in self.members.items()
            for rejection in member.rejections
        ]
        self.starts = [0, *accumulate(len(member) for member in self.members.values())]

    def __len__(self) -> int:
        return self.starts[-1]

    def member(self, index: int) -> tuple[str, ChatDataset, int]:
        """Returns (name of the dataset, dataset, index in that dataset) of the conversation `index`."""
        number = bisect_right(self.starts, index) - 1
        name = list(self.members)[number]
        return name, self.members[name], index - self.starts[number]

    def place(self, index: int) -> tuple[str, str, int | None]:
        name, member, own = self.member(index)
        key, path, line = member.place(own)
        return f"{name}/{key}", path, line

    def turns(self, index: int) -> tuple[Turn, ...]:
        _, member, own = self.member(index)
        return tuple(with_system(member.turns(own), self.config.system_prompt))

    def fields(self, index: int) -> Mapping[str, Any]:
        _, member, own = self.member(index)
        return member.fields(own)

    def in_order(self) -> Iterator[int | Rejection]:
        for start, (name, member) in zip(self.starts, self.members.items()):
            for record in member.in_order():
                if isinstance(record, int):
                    yield start + record
                else:
                    yield replace(record, key=f"{name}/{record.key}")

    def number(self, index: int) -> int:
        _, member, own = self.member(index)
        return member.number(own)

    def require_rates(self) -> None:
        for member in self.members.values():
            member.require_rates()

    def flags(self) -> Iterable[DataFlag]:
        for name, member in self.members.items():
            for found in member.flags():
                yield replace(found, said=f"{found.said} ({name})")

    def contents(self) -> Iterable[tuple[str, Any]]:
        return ((f"{name}/{key}", facts) for name, member in self.members.items() for key, facts in member.contents())

    def traces(self) -> Iterable[str]:
        return chain.from_iterable(member.traces() for member in self.members.values())

    def listing(self) -> Iterable[tuple[str, Any]]:
        return ((f"{name}/{key}", facts) for name, member in self.members.items() for key, facts in member.listing())
