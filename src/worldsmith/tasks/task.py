"""`Task`: what the trainer asks of a family, beside its model."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar

from worldsmith.config import UserError, WrongValueError
from worldsmith.config.declare.configurable import owner_of
from worldsmith.data.assumed_batches import AssumedBatch
from worldsmith.data.report.data_report import DataFlag, DataReport
from worldsmith.data.report.inspect_data import start_report
from worldsmith.data.stream.dataset_record import digest
from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.data.stream.quarantine import Quarantine, Split
from worldsmith.distributed.world import World
from worldsmith.models.model import Model
from worldsmith.objectives.objective import LossSum, Objective


@dataclass(frozen=True, slots=True)
class Preview:
    """What a dry run says of the data."""

    samples: int
    """In the first batch."""
    tokens: int
    """In the first batch."""
    first: str
    """Something of the first batch that was really computed."""


class Task(ABC):
    """Joins the data, the model and the objective of one family into a loss.

    A run has one for its training data and, if it validates, another for its validation data. It is made before the
    weights of `model` have values (in a dry run they never get memory) and before the data are read. A batch is what
    its loader gives, a list of samples unless a family says otherwise; the trainer does not look into it. A family
    must give `loss`, and override what it does differently.
    """

    objective_class: ClassVar[type[Objective]]
    """What `objective` must be in a run tree."""
    loader_class: ClassVar[type[PackingDataLoader]]
    """What `dataloader_train` must be, and `dataloader_val`."""
    has_encoder: ClassVar[bool] = False
    """Whether raw samples are encoded, for `compile_encoder`, `require_cache` and `encode_ahead`."""
    small_recipe: ClassVar[str] = ""
    """The recipe whose limits hold for a data set without a run; "" = there is none."""

    def __init__(
        self,
        *,
        model: Model,
        objective: Objective.Config,
        data: PackingDataLoader.Config,
        world: World | None = None,
        run_folder: Path | None = None,
        split: Split = "train",
    ) -> None:
        """`data` is the section of the split. Without a `run_folder` nothing is written."""
        self.model: Any = model
        self.objective: Any = objective.build()
        self.data: Any = data
        self.world, self.run_folder, self.split = world or World(), run_folder, split
        self.quarantine: Quarantine | None = None
        """What the loader gives its rejections to; None: to that of the run folder."""
        self.long_work: tuple[str, float] | None = None
        """What takes long in a batch at this moment, and the share of it that is done."""
        self.in_first_step = True
        """Until this process has done a step: what takes long in it alone may be said."""

    @classmethod
    def check(cls, run: Any) -> None:
        """Raises WrongValueError for sections of the run tree `run` that do not go together."""
        loaders = {name: cls.loader_class for name in ("dataloader_train", "dataloader_val")}
        for section, wanted in {"objective": cls.objective_class, **loaders}.items():
            found = type(getattr(run, section))
            if found is not NoneType and not issubclass(found, wanted.Config):
                name = getattr(owner_of(found), "__name__", found.__qualname__)
                why = f"a model of the family '{run.model.name}' takes a {wanted.__name__}"
                raise WrongValueError({f"{section}.type": name}, why=why)

    def loader(self, *, dry: bool = False) -> Any:
        """The stream of batches of this rank. `dry`: without processes and without writing anything."""
        settings = copy.deepcopy(self.data)
        settings.num_workers = 0 if dry else settings.num_workers
        return settings.build(**self.place_in_run())

    def weigh(self, batch: Any) -> float:
        """What a batch counts in its step, known before any forward pass: its samples, its tokens, or 1."""
        return len(batch)

    @abstractmethod
    def loss(self, batch: Any, *, seed: int) -> LossSum:
        """The forward pass of one batch. What is random in it depends on `seed` and the samples' positions alone.

        For validation it is called without gradients, with the network in eval mode.
        """

    def check_gradients(self, batches: Sequence[Any], weight: float) -> None:  # noqa: B027 (nothing by default)
        """After the last backward pass of a step, on all ranks, before anything is updated.

        Raises UserError, on all of them, for gradients that only a mistake explains. `weight`: that of the whole step.
        """

    def identify(self, batch: Any) -> Any:
        """What ranks that share a batch must agree on, as a value whose `repr` tells."""
        return self.name_samples(batch)

    def name_samples(self, batch: Any) -> list[Any]:
        """The samples of a batch as the data set calls them, each with its position in the stream."""
        return [[sample.key, sample.position] for sample in batch]

    def padding(self, batch: Any) -> int:
        """Tokens of nothing that are computed beside those of the batch's samples."""
        return 0

    def count_flops(self, batch: Any) -> int | None:
        """Operations that a forward and a backward pass need, recomputation not counted. None: not known."""
        return None

    def assumed_batch(self, *, fill: float = 1.0, encoded: bool = True) -> AssumedBatch:
        """A batch as the loader would give it at that share of the run's own limits, made without any data.

        `encoded`: what a cache keeps has been found in it. Raises UserError for a family that makes none.
        """
        raise UserError(f"{type(self).__name__} says of no batch what it would be like; give it its data")

    def stand_in(self, sample: Any, *, encoded: bool = True) -> Any:
        """A sample of a loader that decodes nothing, with contents of one value; encoded as in `assumed_batch`."""
        return sample

    def clips_first(self) -> None:  # noqa: B027 (nothing by default)
        """From now on `encode_ahead` leaves captions to `read_captions`: two encoders are never held together."""

    def read_captions(self) -> None:  # noqa: B027 (nothing by default)
        """Encodes ahead the captions that `encode_ahead` left, without the encoder of clips."""

    def assume_cached(self) -> None:  # noqa: B027 (nothing by default)
        """From here on all that a cache keeps is taken to be there; no file is read, and encoders are released."""

    def forget_cached(self) -> None:  # noqa: B027 (nothing by default)
        """Takes back `assume_cached`."""

    def encoder_size(self, sample: Any) -> Any:
        """Equal for samples that are as much work to encode."""
        return sample.position

    def caption_tensors(self) -> Iterable[Any]:
        """Those of `encoder_tensors` that read captions."""
        return ()

    def encoder_tensors(self) -> Iterable[Any]:
        """Weights of the encoders that are loaded now."""
        return ()

    def sample_bytes(self, sample: Any) -> tuple[int, int]:
        """Bytes of main memory that a sample takes as its loader gives it, and of disk that a cache keeps of it."""
        return 0, 0

    def preview(self, loader: Any) -> Preview:
        """Reads a first batch of a dry loader, and computes of it what needs no weights of the network."""
        batch = next(iter(loader))
        return Preview(*self.size(batch), first=f"{batch[0].key} is its first")

    def describe_data(self, loader: Any) -> str:
        """What the data set holds and what is left out."""
        return f"{len(loader.dataset)} samples in {loader.dataset.name}; {loader.quarantine.describe()}"

    def data_report(self, loader: Any) -> DataReport:
        """What is known of the data at the start, at little cost."""
        report = start_report(loader)
        report.flags = list(self.flags(loader.dataset))
        return report

    def size(self, batch: Any) -> tuple[int, int]:
        """Samples and tokens of a batch."""
        return len(batch), sum(sample.num_tokens for sample in batch)

    def fills_cache(self, batch: Any) -> bool:
        """Whether `loss` keeps something of this batch for later passes: how long it takes says nothing of theirs."""
        return False

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Within the block the model generates samples; components loaded only for them are freed after it."""
        yield

    def expectation(self, run: Any) -> str | None:
        """In a line, what may be expected of the run tree `run` where that is less than the family can do."""
        return None

    def describe_weights(self, rates: Mapping[str, float]) -> Iterable[tuple[str, str]]:
        """What a start and a dry run should say of the network's parts: a word of at most 12 letters, and a line.

        `rates`: the learning rates of what is trained, by native name.
        """
        return ()

    def remarks(self) -> Iterable[tuple[str, str]]:
        """What a dry run should say of the model: a word of at most 12 letters, and a line."""
        return ()

    def counts(self) -> Mapping[str, int]:
        """What is to be counted on this rank beside the loader's own counts."""
        return {}

    def traces(self, dataset: Any) -> Iterable[str]:
        """What a sample of another data set would have in common with one of this: it tells when two overlap."""
        return (digest(facts) for _, facts in dataset.listing())

    def overlap(self, dataset: Any, other: Any) -> int:
        """How many samples of `dataset` are also in the other one."""
        seen = set(self.traces(other))
        return sum(trace in seen for trace in self.traces(dataset))

    @classmethod
    def relaxed(cls, data: Any) -> Any:
        """A loader's settings with which a check can count all that would end a run at its first sample of a kind."""
        return data

    @classmethod
    def complete(cls, data: Any) -> Any:
        """A loader's settings that hand out all that is to be encoded ahead, whatever a run may leave out by chance."""
        return data

    @classmethod
    def records(cls, data: Any) -> Any:
        """The data set of a loader's settings, where it can be made without a model; else None."""
        return None

    def flags(self, dataset: Any) -> Iterable[DataFlag]:
        """What is to be said of the records before a sample is read."""
        return ()

    @property
    def cell_bytes(self) -> int:
        """Bytes that a cache keeps of a latent cell."""
        return 0

    def contents(self, dataset: Any) -> Iterable[tuple[str, Any]]:
        """The key of each sample, and what makes two of them the same to learn from, whatever they are called."""
        return dataset.listing()  # type: ignore[no-any-return]

    def require_cache(self) -> Path:
        """The folder in which encoded samples are kept. Raises UserError where nothing is."""
        raise UserError(f"{type(self).__name__}: its samples are not encoded before the network, so nothing is kept")

    def encode_ahead(self, sample: Any) -> bool:
        """Encodes a sample of the loader and keeps it, as `loss` would; False: that had been done."""
        raise NotImplementedError(f"{type(self).__name__} has no encoder")

    def compile_encoder(self, tiers: Sequence[str]) -> None:
        """Compiles what turns raw samples into the network's input, for all sizes of these tiers ahead of use."""
        raise NotImplementedError(f"{type(self).__name__} has no encoder")

    def place_in_run(self) -> dict[str, Any]:
        """What every loader is told of the run that it reads for."""
        return {
            "quarantine": self.quarantine or Quarantine(self.run_folder, rank=self.world.rank, split=self.split),
            "rank": self.world.data_rank,
            "world_size": self.world.data_size,
        }
