"""Interfaces between a loader and its data: settings, dataset, sample maker, transfer of samples between processes."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from worldsmith.data.stream.errors import READ_ERRORS, SampleError, read_error
from worldsmith.data.stream.positions import sample_index
from worldsmith.data.stream.quarantine import Rejection

Features = Mapping[str, Sequence[float | str]]
"""Features of a sample by name: zero or more numbers or labels (such as a size) each."""


class StreamSample(Protocol):
    """Attributes of a sample that a loader needs."""

    @property
    def key(self) -> str: ...

    @property
    def position(self) -> int:
        """Position in the endless stream of samples (epoch * len(dataset) + i); it seeds all its randomness."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens that counts towards the limit of a pack."""


class StreamDataset(ABC):
    """Base class of the datasets of a loader; `len` is the number of positions in an epoch."""

    name: str
    """Name in messages: a file or a folder."""
    num_records: int
    rejections: Sequence[Rejection]
    """Number of records that are skipped before any sample is read."""
    limits: str = ""
    """The settings that skip samples, with their values; "" = none."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def listing(self) -> Iterable[tuple[str, Any]]:
        """Yields (key, content as plain data) of each sample, in dataset order."""

    @cached_property
    def num_samples(self) -> int:
        """Number of different samples in all epochs together."""
        return len(self)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the listing, which changes whenever the stream of samples changes."""
        found = hashlib.sha256()
        for key, facts in self.listing():
            found.update(json.dumps([key, facts]).encode())
        return found.hexdigest()

    def contents(self) -> Iterable[tuple[str, Any]]:
        """Yields (key, content) of each sample without file names: samples of equal content are duplicates."""
        return self.listing()

    def traces(self) -> Iterable[str]:
        """Yields a hash for each sample that is equal for the same sample in another dataset, to find overlaps."""
        return (digest(facts) for _, facts in self.listing())

    def count_overlap(self, other: StreamDataset) -> int:
        """Returns the number of samples that are also in `other`."""
        seen = set(other.traces())
        return sum(trace in seen for trace in self.traces())

    def flags(self) -> Iterable[Any]:
        """Returns warnings about the records (`DataFlag`), before a sample is read."""
        return ()


def digest(facts: Any) -> str:
    """Returns the first 12 hex digits of the SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


class StreamSettings(Protocol):
    """Settings of a loader that its sample maker needs."""

    seed: int
    shuffle: bool

    @property
    def sample_cap_field(self) -> str:
        """Name of the setting that limits the tokens of a sample."""

    @property
    def sample_cap(self) -> int | None:
        """Exclusive token limit of a sample; None = no limit."""


S = TypeVar("S", bound=StreamSample)


@dataclass(slots=True)
class Made(Generic[S]):
    """Result of a worker for one position: a complete sample or a rejection, with its counters."""

    item: S | Rejection
    notes: dict[str, str] = field(default_factory=dict)
    """Counter -> message that is logged at its first count; "" = no message."""


class SampleMaker(ABC, Generic[S]):
    """Maps a stream position to a sample, in a worker process. All randomness depends on (seed, position) only.

    `maker[position]` never raises SampleError: unusable samples become a `Rejection`.
    """

    def __init__(self, dataset: StreamDataset, config: StreamSettings) -> None:
        self.dataset: Any = dataset
        self.seed, self.shuffle, self.max_tokens = config.seed, config.shuffle, config.sample_cap
        self.cap_text = f"{config.sample_cap_field} is {getattr(config, config.sample_cap_field)}"
        self.decodes = True
        """Whether images and videos are decoded; if not, a sample has only its tokens and sizes."""
        self.measured: int | None = None
        """Tokens of the sample that was last compared with the limit."""

    @abstractmethod
    def make(self, position: int) -> Made[S]:
        """Builds the complete sample at a position of the data stream.

        Raises:
            SampleError: If the sample is not usable.
        """

    @abstractmethod
    def reject(self, position: int, reason: str, detail: str) -> Rejection:
        """Builds the rejection of the sample at a position, with its key and path."""

    def features(self, sample: S) -> Features:
        """Returns the feature values of a sample for the histograms of a data report."""
        return {}

    def shape(self, sample: S) -> Any:
        """Returns the key that all samples of a stacked pack share."""
        return sample.num_tokens

    def cells(self, sample: S) -> int:
        """Returns the number of latent cells of a sample that a cache stores; 0 if none is cached."""
        return 0

    def __getitem__(self, position: int) -> Made[S]:
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
        return Made(self.reject(position, fault.reason, fault.detail))

    def index(self, position: int) -> int:
        """Returns the index in the dataset of the sample at a position."""
        return sample_index(position, len(self.dataset), seed=self.seed, shuffle=self.shuffle)

    def check_size(self, num_tokens: int, what: str = "") -> None:
        """Raises SampleError if a sample reaches the token cap; may be called before the sample is read.

        Args:
            num_tokens: Tokens of the sample.
            what: Description of the sample for the message, such as its size.
        """
        self.measured = num_tokens
        if self.max_tokens is not None and num_tokens >= self.max_tokens:
            size = f" ({what})" if what else ""
            raise SampleError("over_token_cap", f"{num_tokens} tokens{size}; {self.cap_text}")


class ThroughPipe:
    """Base class of dataclasses whose tensors are pickled as numpy arrays.

    PyTorch would send tensors through shared memory, which is tiny in many containers.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return rebuild, (type(self), [value.numpy() if hasattr(value, "numpy") else value for value in values])


def rebuild(kind: type[Any], values: list[Any]) -> Any:
    import torch

    return kind(*(torch.from_numpy(value) if hasattr(value, "__array__") else value for value in values))
