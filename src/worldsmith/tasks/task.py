"""`Task`: the methods that a model family provides to the trainer, in addition to its model.

A task has two helpers: `DummyData` for plans, and `SampleEncoder` for encoding before a run.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar

from worldsmith.config.declare.configurable import owner_of
from worldsmith.config.errors import UserError, WrongValueError
from worldsmith.data.assumed_batches import DummyBatch
from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.data.stream.quarantine import Quarantine, Split
from worldsmith.distributed.world import World
from worldsmith.models.model import Model
from worldsmith.objectives.objective import BatchLoss, Objective


class DummyData:
    """Builds dummy batches for `worldsmith plan`, and gives access to the encoders of a task (VAE, text encoder)."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def make_batch(self, *, fill: float = 1.0, encoded: bool = True) -> DummyBatch:
        """Builds a dummy batch without reading data.

        Args:
            fill: Size of the batch as a fraction of the batch size limit of the run.
            encoded: Whether the samples have latents, as from the cache, and not raw frames.

        Returns:
            The dummy samples, with the assumptions as text.

        Raises:
            UserError: If the family does not support dummy batches.
        """
        raise UserError(f"{type(self.task).__name__} supports no dummy data: the plan requires the data of the run")

    def fill_sample(self, sample: Any, *, encoded: bool = True) -> Any:
        """Returns a sample with constant contents, for a sample that was read without decoding its images and videos.

        Args:
            sample: Sample without pixels and latents.
            encoded: Whether the result has latents, as from the cache, and not raw frames.
        """
        return sample

    def sample_bytes(self, sample: Any) -> tuple[int, int]:
        """Returns (bytes of a sample in host RAM, as its loader returns it; bytes of its entries in the disk cache)."""
        return 0, 0

    def assume_cached(self) -> None:
        """Treats every sample as cached from now on: no file is read, and the encoders are freed."""

    def forget_cached(self) -> None:
        """Ends the effect of `assume_cached`: samples are read and encoded again."""

    def encoder_size(self, sample: Any) -> Any:
        """Returns a hashable value, such as the clip shape, that is equal for samples with the same encoding cost."""
        return sample.position

    def load_encoders(self) -> None:
        """Loads VAE and text encoder, to measure them; in a simulation, their tensors have no memory."""

    def encoder_tensors(self) -> Iterable[Any]:
        """Returns the weights and buffers of the encoders that are loaded."""
        return ()

    def caption_tensors(self) -> Iterable[Any]:
        """Returns the weights and buffers of the text encoder, if it is loaded."""
        return ()


class SampleEncoder(ABC):
    """Fills the caches of a run before training: encodes samples with the frozen encoders (`encode_samples`)."""

    def __init__(self, task: Any) -> None:
        self.task = task

    @abstractmethod
    def require_cache(self) -> str:
        """Returns the folder of the latent cache.

        Raises:
            UserError: If the run has no cache.
        """

    @property
    @abstractmethod
    def cell_bytes(self) -> int:
        """Bytes in the latent cache per position (t, h, w) of the latent grid, over all channels."""

    @abstractmethod
    def encode(self, sample: Any) -> bool:
        """Encodes a sample into the cache and returns True; returns False if the sample was cached already."""

    def keep_all_samples(self) -> None:  # noqa: B027 (no effect by default)
        """Changes the loader settings so that every sample is returned, even those that training drops at random."""

    def defer_captions(self) -> None:  # noqa: B027 (no effect by default)
        """Makes `encode` skip captions until `encode_captions` is called, so that only one encoder is in memory."""

    def encode_captions(self) -> None:  # noqa: B027 (no effect by default)
        """Frees the encoder of clips, encodes the captions that `encode` skipped, and frees their encoder."""

    def take_captions(self) -> list[Any]:
        """Removes the captions that `encode` skipped from the encoder and returns them, for `encode_caption`.

        The captions are picklable and hashable. Another process can encode them, after the clips of all processes.
        """
        return []

    def encode_caption(self, caption: Any) -> None:  # noqa: B027 (no effect by default)
        """Encodes one caption of `take_captions` into the cache, unless it is cached; its encoder stays loaded."""

    def compile(self, tiers: Sequence[str]) -> None:
        """Compiles the encoder of raw samples for all frame sizes of some resolution buckets.

        Args:
            tiers: Names of the resolution buckets, such as "480".

        Raises:
            NotImplementedError: If the encoder cannot be compiled.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be compiled")


@dataclass(frozen=True, slots=True)
class Preview:
    """Summary of the first batch of a run, shown by a dry run."""

    samples: int
    """Number of samples in the first batch."""
    tokens: int
    """Number of tokens in the first batch."""
    first: str
    """Description of the first sample, such as its key and the shape of its latents."""


class Task(ABC):
    """Combines data, model and objective of one model family: computes the loss of a batch.

    A run has one task for its training data and, if it validates, another for its validation data. A task is built
    before the weights of `model` have values (in a dry run they never get memory) and before the data are read. A batch
    is what the loader returns, a list of samples unless a family overrides that; the trainer does not inspect it. A
    family must define `loss`, and override the methods whose defaults do not fit.
    """

    objective_class: ClassVar[type[Objective]]
    """Required class of `objective` in the config of a run."""
    loader_class: ClassVar[type[PackingDataLoader]]
    """Required class of `dataloader_train` and `dataloader_val`."""
    encoder_class: ClassVar[type[SampleEncoder] | None] = None
    """Class of the property `encoder`; None: samples are not encoded before training."""
    dummy_data_class: ClassVar[type[DummyData]] = DummyData
    """Class of the property `dummy_data`, which builds dummy batches."""
    small_recipe: ClassVar[str] = ""
    """Recipe whose limits `worldsmith check` applies to a dataset without a run; "": none."""
    terms: ClassVar[str] = ""
    """Explanation for users of what a record and a sample of the data are."""

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
        """Builds the task; reads no data.

        Args:
            model: The model; its weights may be without values.
            objective: Config of the objective.
            data: Config section of the loader for `split`.
            world: Ranks of the run; None: a single process.
            run_folder: Run folder; None: no file is written.
            split: Whether the task is for training or for validation.
        """
        self.model: Any = model
        self.objective: Any = objective.build()
        self.data: Any = data
        self.world, self.run_folder, self.split = world or World(), run_folder, split
        self.quarantine: Quarantine | None = None
        """Writer of quarantined samples; None: the loader gets one that writes to the run folder."""
        self.long_work: tuple[str, float] | None = None
        """Name and completed fraction of a long computation in the current batch, such as "encoding"; else None."""
        self.in_first_step = True
        """Whether this process has not completed a step yet; slow work is logged only then."""

    @classmethod
    def check(cls, run: Any) -> None:
        """Raises WrongValueError if sections of `run`, a `RunConfig`, contradict each other."""
        loaders = {name: cls.loader_class for name in ("dataloader_train", "dataloader_val")}
        for section, wanted in {"objective": cls.objective_class, **loaders}.items():
            found = type(getattr(run, section))
            is_foreign = getattr(found, "only_family", "") not in ("", run.model.name)
            if found is not NoneType and (is_foreign or not issubclass(found, wanted.Config)):
                name = getattr(owner_of(found), "__name__", found.__qualname__)
                why = f"a model of the family '{run.model.name}' requires a {wanted.__name__}"
                raise WrongValueError({f"{section}.type": name}, why=why)

    def loader(self, *, dry: bool = False) -> Any:
        """Builds the loader of this rank's batches.

        Args:
            dry: Whether to build it for a dry run: without worker processes and without writing files.
        """
        settings = copy.deepcopy(self.data)
        settings.num_workers = 0 if dry else settings.num_workers
        return settings.build(**self.loader_arguments())

    def loader_arguments(self) -> dict[str, Any]:
        """Returns the loader's constructor arguments that depend on the run: quarantine, rank and world size."""
        return {
            "quarantine": self.quarantine or Quarantine(self.run_folder, rank=self.world.rank, split=self.split),
            "rank": self.world.data_rank,
            "world_size": self.world.data_size,
        }

    def weigh(self, batch: Any) -> float:
        """Returns the weight of a batch in its step (number of samples or tokens, or 1), before any forward pass.

        The loss of a step is the sum of `BatchLoss.sum` over all batches and ranks, divided by the sum of the weights.
        """
        return len(batch)

    def prepare(self, batch: Any, *, seed: int) -> Any:
        """Computes, on the CPU, inputs of `loss` that need no weights, such as noise, positions and attention plans.

        Training calls it in a thread, during the forward and backward pass of the batch before; then all tensors of
        the result are copied to the device at once.

        Args:
            batch: A batch of the loader.
            seed: Seed of the run.

        Returns:
            Nested lists, tuples, dicts and dataclasses with tensors; None: the family prepares nothing.
        """
        return None

    def prepare_on_device(self, batch: Any, *, seed: int) -> Any:
        """Returns the result of `prepare` with its tensors on the device, for callers that prepare in no thread."""
        from worldsmith.tasks.device_copy import move_tensors

        return move_tensors(self.prepare(batch, seed=seed), self.model.device)

    @abstractmethod
    def loss(self, batch: Any, *, seed: int) -> BatchLoss:
        """Runs the forward pass of one batch and returns the sum of its loss, with metrics.

        Validation calls it without gradients, with the network in eval mode. If the family overrides `prepare`, this
        method has one more keyword argument: `inputs`, its result with the tensors on the device, or None if the method
        has to prepare them itself (`prepare_on_device`).

        Args:
            batch: A batch of the loader.
            seed: Seed of the run; random values depend only on it and on the positions of the samples in the stream.
        """

    def step_counts(self, batches: Sequence[Any]) -> Mapping[str, float]:
        """Returns values of the batches of this rank in a step, by name; `check_gradients` gets their sums over ranks.

        All ranks must return the same names.
        """
        return {}

    def check_gradients(self, weight: float, sums: Mapping[str, float]) -> None:  # noqa: B027 (no effect by default)
        """Checks the gradients after the last backward pass of a step, on all ranks, before the optimizer step.

        Args:
            weight: Weight of the step over all ranks.
            sums: Sums of `step_counts` over all ranks.

        Raises:
            UserError: On all ranks, if the gradients can only result from a wrong setup.
        """

    def identify(self, batch: Any) -> Any:
        """Returns a description of a batch; its `repr` must be equal on all ranks that process the same batch."""
        return self.name_samples(batch)

    def name_samples(self, batch: Any) -> list[Any]:
        """Returns [key, stream position] of each sample of a batch."""
        return [[sample.key, sample.position] for sample in batch]

    def size(self, batch: Any) -> tuple[int, int]:
        """Returns the number of samples and the number of tokens of a batch."""
        return len(batch), sum(sample.num_tokens for sample in batch)

    def padding(self, batch: Any) -> int:
        """Returns the number of padding tokens of a batch."""
        return 0

    def count_flops(self, batch: Any) -> int | None:
        """Returns the FLOPs of a forward and a backward pass without recomputation; None: not known."""
        return None

    def fills_cache(self, batch: Any) -> bool:
        """Returns whether `loss` writes encodings of this batch to a cache, so it takes longer than in later epochs."""
        return False

    def counts(self) -> Mapping[str, int]:
        """Returns counters of this rank to log, by metric name, in addition to those of the loader."""
        return {}

    def expect_cached(self) -> None:  # noqa: B027 (no effect by default)
        """Logs the first sample that is encoded from now on, and counts them: all were encoded before the training."""

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Context manager for sample generation: at its end, components that only generation needs are freed."""
        yield

    @cached_property
    def encoder(self) -> SampleEncoder:
        """Object that encodes samples into the caches before the run.

        Raises:
            UserError: If the family has no encoder.
        """
        if self.encoder_class is None:
            name = type(self).__name__
            raise UserError(f"{name}: its samples are not encoded before training, so there is nothing to cache")
        return self.encoder_class(self)

    @property
    def dummy_data(self) -> DummyData:
        """Object that builds dummy batches and gives access to the encoders, for plans."""
        return self.dummy_data_class(self)

    def preview(self, loader: Any) -> Preview:
        """Reads the first batch of a loader built for a dry run, and summarizes it; needs no network weights."""
        batch = next(iter(loader))
        return Preview(*self.size(batch), first=f"{batch[0].key} is its first sample")

    def describe_weights(self, run: Any, rates: Mapping[str, float]) -> Iterable[tuple[str, str]]:
        """Returns (label, text) of lines on the weights, printed at the start of a run and by a dry run.

        They describe the components of the network, or which results to expect if random or tiny weights limit them.

        Args:
            run: The config of the run, a `RunConfig`.
            rates: Learning rates of the trained parameters by internal parameter name.

        Returns:
            Pairs (label of up to 12 letters, text).
        """
        return ()

    def remarks(self) -> Iterable[tuple[str, str]]:
        """Returns (label of up to 12 letters, text) of lines about the model, printed by a dry run."""
        return ()
