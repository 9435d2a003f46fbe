"""What a loader asks of its data: a data set that is known before it is read, and a maker of its samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from worldsmith.data.stream.errors import READ_ERRORS, SampleError, read_error
from worldsmith.data.stream.order import sample_index
from worldsmith.data.stream.quarantine import Rejection

if TYPE_CHECKING:
    from worldsmith.data.stream.loader import PackingDataLoader


class StreamSample(Protocol):
    """What a loader must know of a sample."""

    @property
    def key(self) -> str: ...

    @property
    def position(self) -> int:
        """Position in the endless stream of samples (epoch * len(dataset) + i); it seeds all its randomness."""

    @property
    def num_tokens(self) -> int:
        """What counts against the cap of a pack."""


class StreamDataset(Protocol):
    """What a loader must know of a data set; `len` is the number of positions in a pass."""

    @property
    def name(self) -> str:
        """What messages call it: a file or a folder."""

    @property
    def num_records(self) -> int: ...

    @property
    def num_samples(self) -> int:
        """Different samples that all passes together can give."""

    @property
    def rejections(self) -> Sequence[Rejection]:
        """What is left out already."""

    @property
    def fingerprint(self) -> str:
        """Changes with everything that makes it another stream."""

    @property
    def limits(self) -> str:
        """The settings that leave samples out, with their values; "" = none."""

    def listing(self) -> Iterable[tuple[str, Any]]:
        """Key and, as plain data, all that makes up each sample, in the order of the data set."""

    def __len__(self) -> int: ...


S = TypeVar("S", bound=StreamSample)
Features = Mapping[str, Sequence[float | str]]
"""By name numbers, or words such as a size; of some there are several in a sample, or none."""


@dataclass(slots=True)
class Made(Generic[S]):
    """What a worker returns: a complete sample or a rejection, and what is to be counted of it."""

    item: S | Rejection
    notes: dict[str, str] = field(default_factory=dict)
    """Counter -> what is said when it counts for the first time; "" = nothing."""


class SampleMaker(ABC, Generic[S]):
    """Maps a stream position to a sample, in a worker process. All randomness comes from (seed, position)."""

    def __init__(self, dataset: StreamDataset, config: PackingDataLoader.Config) -> None:
        self.dataset: Any = dataset
        self.seed, self.shuffle, self.max_tokens = config.seed, config.shuffle, config.sample_cap
        self.cap_text = f"{config.sample_cap_field} is {getattr(config, config.sample_cap_field)}"
        self.decodes = True
        """Whether pictures are decoded; without, a sample has its tokens and sizes alone."""
        self.measured: int | None = None
        """Tokens of what was held against the cap last."""

    @abstractmethod
    def make(self, position: int) -> Made[S]:
        """The sample, with all that training needs of it. Raises SampleError for one that cannot be used."""

    @abstractmethod
    def reject(self, position: int, reason: str, detail: str) -> Rejection:
        """The rejection of the sample, with its name and place."""

    def features(self, sample: S) -> Features:
        """What a report on the data counts of a sample."""
        return {}

    def shape(self, sample: S) -> Any:
        """What samples that are stacked must have in common."""
        return sample.num_tokens

    def cells(self, sample: S) -> int:
        """Latent cells of a sample, of which a cache keeps some numbers each; 0 = nothing is kept of it."""
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
        """Which sample of the data set stands at a position."""
        return sample_index(position, len(self.dataset), seed=self.seed, shuffle=self.shuffle)

    def check_size(self, num_tokens: int, what: str = "") -> None:
        """Raises SampleError for a sample that is too long for its loader; may be called before it is read."""
        self.measured = num_tokens
        if self.max_tokens is not None and num_tokens >= self.max_tokens:
            size = f" ({what})" if what else ""
            raise SampleError("over_token_cap", f"{num_tokens} tokens{size}; {self.cap_text}")
