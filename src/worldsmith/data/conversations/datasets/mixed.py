"""Several chat datasets combined into one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from itertools import accumulate
from typing import Any, Self

from worldsmith.data.conversations.conversation import Turn
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset, with_system
from worldsmith.data.conversations.datasets.llava_onevision import LlavaOneVision
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.sample_maker import DatasetMix


class MixedDataset(DatasetMix, ChatDataset):
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
        super().__init__(config)
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
