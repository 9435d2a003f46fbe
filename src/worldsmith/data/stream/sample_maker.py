"""Interfaces between a loader and its data: settings, dataset, sample maker, transfer of samples between processes."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

from worldsmith.data.stream.errors import READ_ERRORS, SampleError, read_error
from worldsmith.data.stream.positions import sample_index
from worldsmith.data.stream.quarantine import Rejection

ALL = "all windows"
"""Key of the only item of `StreamDataset.listing` if the dataset is large."""
Features = Mapping[str, Sequence[float | str]]
"""Properties of a sample for a data report: name -> values (numbers, or labels such as a size)."""


class StreamSample(Protocol):
    """Protocol of the samples of a data loader."""

    @property
    def key(self) -> str: ...

    @property
    def position(self) -> int:
        """Position in the endless stream of samples (epoch * len(dataset) + i), which seeds all random choices."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens that counts toward the token limit of a pack."""


class StreamDataset(ABC):
    """Base class of the datasets of data loaders; `len` is the number of samples of an epoch."""

    name: str
    """Name in messages: a file or a folder."""
    num_records: int
    """Number of records of the dataset, including rejected ones."""
    rejections: Sequence[Rejection]
    """Records that are skipped before any sample is read."""
    limits: str = ""
    """Settings that cause samples to be skipped, with their values, for messages; "" = no such settings."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def listing(self) -> Iterable[tuple[str, Any]]:
        """Yields (key, content as JSON data) of each sample in dataset order, from which `fingerprint` is computed."""

    @cached_property
    def num_samples(self) -> int:
        """Number of different samples in all epochs together; an epoch may have fewer."""
        return len(self)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all items of `listing`: it changes if the samples or their order change."""
        found = hashlib.sha256()
        for key, facts in self.listing():
            found.update(json.dumps([key, facts]).encode())
        return found.hexdigest()

    def contents(self) -> Iterable[tuple[str, Any]]:
        """Yields (key, content without file names) of each sample; samples of equal content are duplicates."""
        return self.listing()

    def traces(self) -> Iterable[str]:
        """Yields one string per sample, which is the same for this sample in another dataset, to find overlaps."""
        return (digest(facts) for _, facts in self.listing())

    def find_traces(self, wanted: Iterable[str]) -> set[str]:
        """Returns the entries of `wanted` that are traces of samples of this dataset."""
        return set(wanted).intersection(self.traces())

    def count_overlap(self, other: StreamDataset) -> int:
        """Returns the number of samples of this dataset that `other` also contains."""
        own = Counter(self.traces())
        return sum(own[trace] for trace in other.find_traces(own))

    def flags(self) -> Iterable[Any]:
        """Returns the warnings (`DataFlag`) about the records of the dataset; reads no sample."""
        return ()

    def channels(self) -> Mapping[str, Mapping[str, float]]:
        """Returns the min, q01, q99 (percentiles) and max of each channel of the actions by name; reads no sample."""
        return {}

    def run_files(self) -> Mapping[str, str]:
        """Returns the files to store in the run folder, as content by name."""
        return {}


class DatasetMix(StreamDataset):
    """Base class of several datasets in one; the keys of their samples begin with the name of their dataset."""

    def __init__(self, config: Any) -> None:
        """Reads the datasets of `config.datasets`; raises DataError if one of them cannot be read."""
        self.config = config
        self.members = {name: config.datasets[name].build() for name in sorted(config.datasets)}
        self.name = " + ".join(member.name for member in self.members.values())
        self.limits = " ".join(member.limits for member in self.members.values()).strip()
        self.num_records = sum(member.num_records for member in self.members.values())
        self.rejections = [
            replace(rejection, key=f"{name}/{rejection.key}")
            for name, member in self.members.items()
            for rejection in member.rejections
        ]

    @cached_property
    def num_samples(self) -> int:
        return sum(member.num_samples for member in self.members.values())

    def listing(self) -> Iterable[tuple[str, Any]]:
        return ((f"{name}/{key}", facts) for name, member in self.members.items() for key, facts in member.listing())

    def contents(self) -> Iterable[tuple[str, Any]]:
        return ((f"{name}/{key}", facts) for name, member in self.members.items() for key, facts in member.contents())

    def traces(self) -> Iterable[str]:
        return chain.from_iterable(member.traces() for member in self.members.values())

    def find_traces(self, wanted: Iterable[str]) -> set[str]:
        return set().union(*(member.find_traces(wanted) for member in self.members.values()))

    def flags(self) -> Iterable[Any]:
        for name, member in self.members.items():
            for found in member.flags():
                yield replace(found, said=f"{found.said} ({name})")


def digest(facts: Any) -> str:
    """Returns the first 12 hex digits of the SHA-256 of JSON data."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def short_hash(text: str) -> int:
    """Returns the first 8 bytes of the SHA-256 of a text. Their order is that of the complete hashes."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


class StreamSettings(Protocol):
    """Protocol of the data loader settings that `SampleMaker` uses."""

    seed: int
    shuffle: bool

    @property
    def sample_cap_field(self) -> str:
        """Name of the config field that limits the number of tokens of a sample."""

    @property
    def sample_cap(self) -> int | None:
        """Exclusive token limit of a sample; None = no limit."""


S = TypeVar("S", bound=StreamSample)


@dataclass(slots=True)
class SampleResult(Generic[S]):
    """Result for one stream position: a sample or a rejection (`item`), and the loader counters to increase."""

    item: S | Rejection
    notes: dict[str, str] = field(default_factory=dict)
    """Counters to increase by one: name -> message that is logged when the counter is first used; "" = no message."""


class SampleMaker(ABC, Generic[S]):
    """Base class of sample builders: `maker[position]` returns a `SampleResult` with the sample at a stream position.

    It runs in worker processes, and all randomness depends on (seed, position) only. `maker[position]` returns a
    `Rejection` for an unusable sample, and does not raise SampleError.
    """

    def __init__(self, dataset: StreamDataset, config: StreamSettings) -> None:
        self.dataset: Any = dataset
        self.seed, self.shuffle, self.max_tokens = config.seed, config.shuffle, config.sample_cap
        self.cap_text = f"{config.sample_cap_field} is {getattr(config, config.sample_cap_field)}"
        self.decodes = True
        """Whether images and videos are decoded; if not, a sample has only its tokens and sizes."""
        self.find_index: Callable[[int], int] | None = None
        """Returns the dataset index of a stream position in a mix of datasets; None: the dataset is not mixed."""
        self.measured: int | None = None
        """Number of tokens of the sample that `check_size` has checked last; None before the first one."""

    @abstractmethod
    def make(self, position: int) -> SampleResult[S]:
        """Returns the sample at a stream position, with its counters.

        If `self.decodes` is False, images and videos are not decoded.

        Raises:
            SampleError: If the sample is not usable.
        """

    @abstractmethod
    def reject(self, position: int, reason: str, detail: str) -> Rejection:
        """Returns the rejection of the sample at a stream position.

        Args:
            position: Position in the stream, from which key and path of the sample follow.
            reason: Short slug, such as "missing_file".
            detail: Message for users.
        """

    def features(self, sample: S) -> Features:
        """Returns properties of a sample for the histograms of a data report: lists of values by property name."""
        return {}

    def shape(self, sample: S) -> Any:
        """Returns a key that is equal for samples whose tensors can be stacked."""
        return sample.num_tokens

    def cells(self, sample: S) -> int:
        """Returns the number of latent positions (t·h·w) that a cache stores for a sample; 0 without latents."""
        return 0

    def __getitem__(self, position: int) -> SampleResult[S]:
        try:
            made = self.make(position)
            if not isinstance(made.item, Rejection):
                self.check_size(made.item.num_tokens)
            return made
        except SampleError as error:
            fault = error
        except OSError as error:
            if error.errno not in READ_ERRORS:
                raise
            fault = read_error(error)
        return SampleResult(self.reject(position, fault.reason, fault.detail))

    def index(self, position: int) -> int:
        """Returns the dataset index of the sample at a stream position."""
        if self.find_index is not None:
            return self.find_index(position)
        return sample_index(position, len(self.dataset), seed=self.seed, shuffle=self.shuffle)

    def check_size(self, num_tokens: int, what: str = "") -> None:
        """Raises SampleError (over_token_cap) if a sample reaches the token limit; can be called before it is decoded.

        Args:
            num_tokens: Number of tokens of the sample.
            what: Description of the sample for the message, such as its size; "": no description.
        """
        self.measured = num_tokens
        if self.max_tokens is not None and num_tokens >= self.max_tokens:
            size = f" ({what})" if what else ""
            raise SampleError("over_token_cap", f"{num_tokens} tokens{size}; {self.cap_text}")


class ThroughPipe:
    """Base class of dataclasses whose tensors are pickled as NumPy arrays, to be sent between processes by a pipe.

    PyTorch would send tensors through shared memory, which is very small in many containers.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return rebuild, (type(self), [value.numpy() if hasattr(value, "numpy") else value for value in values])


def rebuild(kind: type[Any], values: list[Any]) -> Any:
    import torch

    return kind(*(torch.from_numpy(value) if hasattr(value, "__array__") else value for value in values))
