"""`PackingDataLoader`: an endless, resumable stream of packs."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from worldsmith.config import Configurable, wrong
from worldsmith.config.declare.ranges import Count, NotNegative, Share
from worldsmith.data.data_report import DataReport
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.packing import AlikePacker, Packer, PaddedPacker, PoolPacker, SequentialPacker, check_caps
from worldsmith.data.stream.positions import Cursor, merge_positions
from worldsmith.data.stream.quarantine import Quarantine, Rejection
from worldsmith.data.stream.sample_maker import SampleMaker, SampleResult, StreamDataset
from worldsmith.data.stream.workers import fetch

log = logging.getLogger(__name__)

PACKERS: dict[str, type[Packer[Any]]] = {
    "sequential": SequentialPacker,
    "pool": PoolPacker,
    "padded": PaddedPacker,
    "alike": AlikePacker,
}


class PackingDataLoader(Configurable):
    """Endless, resumable data loader of packed batches (packs: lists of samples) for one rank.

    With n samples per epoch, position p of the stream is sample p % n of epoch p // n. Rank r of w ranks reads the
    positions with p % w == r. Their order depends only on dataset and seed, not on workers and prefetching.
    `state_dict()` is the position after the pack that was yielded last.

    Unusable samples are skipped and listed in the quarantine; DataError is raised if there are too many. A subclass
    declares the dataset in its Config and passes the `SampleMaker` that builds the samples.
    """

    class Config(Configurable.Config):
        _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("max_sequence_length", "max_samples_per_batch"),)
        """Groups of fields of which exactly one is set. A subclass that allows both pack limits at once sets this to
        ()."""

        max_sequence_length: Count | None = None
        """Token limit of a pack (exclusive). Set exactly one of this and max_samples_per_batch."""
        max_samples_per_batch: Count | None = None
        """Samples per pack. Set exactly one of this and max_sequence_length."""
        packer: Literal["sequential", "pool", "padded", "alike"] = "sequential"
        """Selection of samples for packs. "sequential": in order; "pool": the oldest sample, then those that fill the
        pack best; "padded": least padding; "alike": the oldest sample and others of the same shape, for networks that
        require stacked samples."""
        lookahead: Count = 10
        """Packer sequential: max number of samples that may be postponed before a pack is closed; other packers: number
        of samples from which a pack is chosen."""
        seed: int = 42
        """Seed of the order and of all random choices (captions, dropout, conditioning, frames)."""
        shuffle: bool = True
        """Whether every epoch has a new random order; False = the order of the dataset."""
        num_workers: NotNegative = 0
        """Number of worker processes that read and decode; 0 = in the training process."""
        prefetch_factor: Count = 2
        """Number of samples that each worker process prepares in advance."""
        max_bad_fraction: Share = 0.05
        """Fraction of broken samples above which the run stops."""
        bad_samples_allowed: NotNegative = 8
        """Number of broken samples that never stops a run, unless it is more than half of the data."""

        @property
        def sample_cap_field(self) -> str:
            """Name of the config field that limits the number of tokens of a sample."""
            return "max_sequence_length"

        @property
        def sample_cap(self) -> int | None:
            """Exclusive token limit of a sample; None: no limit."""
            return self.max_sequence_length

        def relax(self) -> Self:
            """Returns a copy of the config for data checks, which skips samples at which a run would stop."""
            return self

        def build_records(self) -> StreamDataset | None:
            """Returns the dataset, for checks of its records without a loader; None if this is not supported."""
            return None

        def check(self) -> None:
            check_caps(
                self.max_sequence_length, self.max_samples_per_batch, self.lookahead, both=not self._alternatives
            )
            if self.packer == "pool" and self.max_sequence_length is None:
                why = "packs are filled up to max_sequence_length"
                raise wrong(self, "packer", "max_sequence_length", why=why, remedy="set it")

    def __init__(
        self,
        config: Config,
        *,
        maker: SampleMaker[Any],
        quarantine: Quarantine | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Opens the stream of one rank at its first position.

        Args:
            config: Settings of the loader.
            maker: Builds the samples of its dataset.
            quarantine: Records skipped samples; None: they are only counted.
            rank: Index of the data-parallel rank.
            world_size: Number of data-parallel ranks.

        Raises:
            DataError: If the dataset has no usable sample or too many broken records.
        """
        config.check()
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size} ranks")
        self.config = config
        self.maker = maker
        self.dataset = maker.dataset
        self.quarantine = quarantine if quarantine is not None else Quarantine(None)
        self.rank = rank
        self.world_size = world_size
        self.counts: Counter[str] = Counter()
        """Counters by name: samples, workers_died, and those of the `SampleMaker`."""
        for rejection in self.dataset.rejections:
            self.quarantine.add(rejection)
        bad = sum(not rejection.is_filter for rejection in self.dataset.rejections)
        self._total = self.dataset.num_samples + bad
        if not len(self.dataset) and self.quarantine.refuses:
            raise DataError(
                f"[E102] {self.dataset.name} has {self.dataset.num_records} records and no usable sample "
                f"({self.quarantine.describe()}). {self.dataset.limits}"
            )
        self.check_quarantine()
        self._state = self._snapshot(rank, [])
        self._iteration = 0

    @classmethod
    def dataset_at(cls, path: str) -> Configurable.Config | None:
        """Returns a config of the dataset at `path`; None if this loader cannot read it."""
        return None

    def describe(self) -> str:
        """Returns a line of text with the name of the dataset and its numbers of usable and skipped samples."""
        return f"{len(self.dataset)} samples in {self.dataset.name}; {self.quarantine.describe()}"

    def report(self) -> DataReport:
        """Returns the data report at the start of a run: counts and warnings, for which no sample is read."""
        report = DataReport.of_dataset(self.dataset, self.config.sample_cap)
        report.flags = list(self.dataset.flags())
        return report

    def __iter__(self) -> Iterator[list[Any]]:
        """Yields packs without end, from the one after the last yielded pack. Only the newest iterator may be used."""
        self._iteration += 1
        iteration = self._iteration
        cursor = Cursor(deque(self._state["set_aside"]), self._state["next_position"])
        packer, samples = self._packer(), self._samples(cursor)
        while True:
            pack = packer.pack(samples)
            if iteration != self._iteration:
                raise RuntimeError(
                    "this iterator is outdated, since a new iteration was started or a state of the loader was loaded; "
                    "iterate over the loader again"
                )
            waiting = [sample.position for sample in packer.buffer] + list(cursor.set_aside)
            self._state = self._snapshot(cursor.next_position, waiting)
            yield pack

    def first_pass(self) -> Iterator[list[Any]]:
        """Yields the packs of this rank's shard of the first epoch: each sample once, and a smaller last pack.

        The state of the training stream does not change.
        """
        packer, samples = self._packer(), self.first_samples()
        while pack := packer.pack(samples):
            yield pack

    def first_samples(self, passes: int = 1) -> Iterator[Any]:
        """Yields the samples of this rank's shard of the first `passes` epochs in order, unpacked."""
        return self._samples(Cursor(deque(), self.rank), stop=passes * len(self.dataset))

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this rank after the last yielded pack, as JSON data for `load_states`.

        It contains the reading position (`next_position`, `set_aside`, `epoch`), the rank and the number of ranks. It
        also contains the length and fingerprint of the dataset, the seed and the shuffling: `load_states` requires that
        these four values are unchanged.

        Samples that were prefetched, or wait for a pack, are read again after the state is loaded.
        """
        return dict(self._state, set_aside=list(self._state["set_aside"]))

    def load_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continues a run from the states of all its ranks.

        With the same number of ranks, each rank continues with exactly the packs that would have followed. Otherwise
        the samples that no rank has yielded are distributed again, so that no sample is lost or repeated.

        Args:
            states: `state_dict()` of every rank, in rank order.

        Raises:
            ValueError: If the states belong to another stream (dataset, seed or shuffling).
        """
        changes = self.changes_since(states[0])
        if changes:
            raise ValueError(f"the data loader state cannot be restored: {'; '.join(changes)}")
        if len(states) == self.world_size:
            own = states[self.rank]
            next_position, set_aside = own["next_position"], own["set_aside"]
        else:
            next_position, set_aside = merge_positions(states).share(self.rank, self.world_size)
        self._continue_at(next_position, set_aside)

    def start_next_pass(self, states: Sequence[Mapping[str, Any]]) -> int:
        """Continues, with this dataset, a run that used another one: moves to the start of the run's next epoch.

        Args:
            states: `state_dict()` of every rank of the run with the other data.

        Returns:
            Number of the new epoch.
        """
        epoch = 1 + max(state["epoch"] for state in states)
        self._continue_at(epoch * len(self.dataset) + (self.rank - epoch * len(self.dataset)) % self.world_size, [])
        return epoch

    def changes_since(self, state: Mapping[str, Any]) -> list[str]:
        """Returns a description of each difference between this stream and that of a saved state, such as the seed.

        Args:
            state: `state_dict()` of any rank of the saved run.
        """
        names = {
            "dataset_length": f"number of samples of {self.dataset.name}",
            "dataset_fingerprint": f"content of {self.dataset.name}",
            "seed": "dataloader_train.seed",
            "shuffle": "dataloader_train.shuffle",
        }
        now = self._identity()
        changed = [name for name in names if state[name] != now[name]]
        return [
            f"{names[name]}: {format_state_value(state[name])} -> {format_state_value(now[name])}" for name in changed
        ]

    def _continue_at(self, next_position: int, set_aside: Sequence[int]) -> None:
        self._state = self._snapshot(next_position, list(set_aside))
        self._iteration += 1

    def _identity(self) -> dict[str, Any]:
        return {
            "dataset_length": len(self.dataset),
            "dataset_fingerprint": self.dataset.fingerprint,
            "seed": self.config.seed,
            "shuffle": self.config.shuffle,
        }

    def _snapshot(self, next_position: int, set_aside: list[int]) -> dict[str, Any]:
        place = {"rank": self.rank, "world_size": self.world_size, "epoch": next_position // max(1, len(self.dataset))}
        return {**self._identity(), **place, "next_position": next_position, "set_aside": set_aside}

    def _packer(self) -> Packer[Any]:
        return PACKERS[self.config.packer](
            lambda sample: sample.num_tokens,
            max_sequence_length=self.config.max_sequence_length,
            max_samples_per_batch=self.config.max_samples_per_batch,
            lookahead=self.config.lookahead,
            shape=self.maker.shape,
        )

    def _samples(self, cursor: Cursor, stop: int | None = None) -> Iterator[Any]:
        """Yields the samples of this rank in order; unusable samples are skipped and quarantined.

        Args:
            cursor: Position to start at; advanced in place with every sample.
            stop: Position before which the samples end; None: endless.

        Raises:
            DataError: If too many samples are broken, or no sample can be used.
        """
        unusable: set[str] = set()
        rejected_in_a_row = 0
        # Far more than chance can explain, also for a rank that sees a small part of each epoch.
        limit = min(10 * self.dataset.num_samples, 10_000)
        positions, config = cursor.positions(self.world_size, stop), self.config
        found = fetch(
            self.maker, positions, workers=config.num_workers, prefetch=config.prefetch_factor, counts=self.counts
        )
        for position, made in zip(positions, found):
            cursor.advance(position, self.world_size)
            if self.receive(made):
                rejected_in_a_row = 0
                unusable.discard(made.item.key)
                yield made.item
                continue
            unusable.add(made.item.key)
            rejected_in_a_row += 1
            if rejected_in_a_row >= limit or len(unusable) == self.dataset.num_samples:
                raise self.unusable()

    def receive(self, made: SampleResult[Any]) -> bool:
        """Counts the result for a stream position, quarantines a rejection, and returns whether it is a sample.

        Results that were built elsewhere can be passed too, in any order, to apply the limits of this loader.

        Raises:
            DataError: If too many samples are broken.
        """
        for name, words in made.notes.items():
            if words and not self.counts[name]:
                log.warning("%s", words)
            self.counts[name] += 1
        if not isinstance(made.item, Rejection):
            self.counts["samples"] += 1
            return True
        if self.quarantine.add(made.item):
            self.check_quarantine()
        return False

    def unusable(self) -> DataError:
        """Returns the error for a dataset with samples of which each was rejected."""
        return DataError(f"[E102] no sample of {self.dataset.name} can be used: {self.quarantine.describe()}")

    def check_quarantine(self) -> None:
        """Raises DataError if more samples are broken than the config allows."""
        self.quarantine.check(
            self._total,
            max_bad_fraction=self.config.max_bad_fraction,
            bad_samples_allowed=self.config.bad_samples_allowed,
        )


def format_state_value(value: Any) -> str:
    """Returns a value of a loader state as text for messages; fingerprints are cut to their first 12 characters."""
    return value[:12] if isinstance(value, str) else str(value)
