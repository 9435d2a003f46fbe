"""`PackingDataLoader`: an endless, resumable stream of packs."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.config import Configurable
from worldsmith.config.declare.ranges import Count, NotNegative, Share
from worldsmith.data.clips.sample import Rejection, VideoSample
from worldsmith.data.clips.token_count import sample_tokens
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.packing import SequentialPacker, check_caps
from worldsmith.data.stream.positions import Cursor, Positions, merge_positions
from worldsmith.data.stream.quarantine import Quarantine

if TYPE_CHECKING:
    from worldsmith.data.clips.latent_cache import LatentCache
    from worldsmith.data.clips.sample_maker import Made

log = logging.getLogger(__name__)


class PackingDataLoader(Configurable):
    """Packs of samples, for ever, in an order that depends on nothing but the data set, the seed and the rank.

    Position p of the stream is sample p % n of epoch p // n; rank r of w takes the positions with p % w == r. Worker
    processes and what they prefetch change nothing. `state_dict()` is that of the pack handed out last.
    Samples that cannot be used go to the quarantine and never stop the run, unless there are too many (DataError).
    """

    class Config(Configurable.Config):
        _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("max_sequence_length", "max_samples_per_batch"),)

        dataset: VideoDataset.Config = field(default_factory=VideoDataset.Config)
        """The data set."""
        max_sequence_length: Count | None = None
        """Tokens per pack, an exclusive cap. Set exactly one of this and max_samples_per_batch."""
        max_samples_per_batch: Count | None = None
        """Samples per pack. Set exactly one of this and max_sequence_length."""
        max_caption_tokens: Count = 2048
        """Caption ids beyond this many are cut off, after the chat template."""
        lookahead: Count = 10
        """Samples that may be set aside, because they do not fit, before a pack is closed."""
        seed: int = 42
        """Seed of the order and of all draws (captions, dropout, conditioning, frames)."""
        shuffle: bool = True
        """A new order in every epoch; False = the order of the data set in every epoch."""
        num_workers: NotNegative = 0
        """Processes that read and decode; 0 = in the training process."""
        prefetch_factor: Count = 2
        """Samples that each worker process holds ready."""
        max_bad_fraction: Share = 0.05
        """Share of broken samples at which the run stops."""
        bad_samples_allowed: NotNegative = 8
        """This many broken samples never stop a run while they are at most half of the data."""
        latent_cache: str = ""
        """Folder for encoded clips; "" = off."""

        def check(self) -> None:
            check_caps(self.max_sequence_length, self.max_samples_per_batch, self.lookahead)

    def __init__(
        self,
        config: Config,
        *,
        tokenizer: Callable[[str], list[int]],
        latent_cache: LatentCache | None = None,
        quarantine: Quarantine | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """`tokenizer` maps a caption to its chat-templated ids. Raises DataError when no window can be used."""
        config.dataset.check()
        config.check()
        if config.latent_cache and latent_cache is None:
            raise ValueError(
                f"latent_cache is '{config.latent_cache}' but no LatentCache was given; pass one, or set it to ''"
            )
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size} ranks")
        self.config = config
        self.tokenizer = tokenizer
        self.latent_cache = latent_cache
        self.quarantine = quarantine if quarantine is not None else Quarantine(None)
        self.rank = rank
        self.world_size = world_size
        self.counts: Counter[str] = Counter()
        """samples, captions_truncated, variable_rate, workers_died, cache_hit, cache_miss, cache_corrupt."""
        self.dataset: VideoDataset = config.dataset.build()
        for rejection in self.dataset.rejections:
            self.quarantine.add(rejection)
        self._total = len(self.dataset) + sum(not rejection.is_filter for rejection in self.dataset.rejections)
        if not len(self.dataset):
            raise DataError(
                f"{self.dataset.file} has {self.dataset.num_records} records and no usable window "
                f"({self.quarantine.describe()}). min_frames is {config.dataset.min_frames}, "
                f"max_duration {config.dataset.max_duration} s."
            )
        self._check_quarantine()
        self._state = self._snapshot(rank, [])
        self._iteration = 0

    def __iter__(self) -> Iterator[list[VideoSample]]:
        """Continues after the pack that was handed out last. Only the newest iterator may be used."""
        self._iteration += 1
        iteration = self._iteration
        set_aside = deque(self._state["set_aside"])
        cursor = Cursor(set_aside, self._state["next_position"])
        packer: SequentialPacker[VideoSample] = SequentialPacker(
            lambda sample: sample.num_tokens,
            max_sequence_length=self.config.max_sequence_length,
            max_samples_per_batch=self.config.max_samples_per_batch,
            lookahead=self.config.lookahead,
        )
        samples = self._samples(cursor, packer)
        while True:
            pack = packer.pack(samples)
            if iteration != self._iteration:
                raise RuntimeError("this iterator is outdated: the loader was iterated anew or its state was loaded")
            waiting = [sample.position for sample in packer.buffer] + list(cursor.set_aside)
            self._state = self._snapshot(cursor.next_position, waiting)
            yield pack

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data. Samples that are prefetched, or read for a pack that is not handed out, are not in it."""
        return dict(self._state, set_aside=list(self._state["set_aside"]))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iterator continues with exactly the packs that would have followed. Raises ValueError."""
        if (state["rank"], state["world_size"]) != (self.rank, self.world_size):
            raise ValueError(
                f"the state is that of rank {state['rank']} of {state['world_size']}, and this is rank {self.rank} of "
                f"{self.world_size}; give the states of all ranks to load_states"
            )
        self.load_states([state] * self.world_size)

    def load_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continues a run from the states of all its ranks.

        With as many ranks as now, each goes on with exactly the packs that would have followed. Otherwise what none of
        them has handed out is dealt anew: no sample is lost or repeated. Raises ValueError for another stream.
        """
        changes = self.changes_since(states[0])
        if changes:
            raise ValueError(f"the data position cannot be continued: {'; '.join(changes)}")
        if len(states) == self.world_size:
            own = states[self.rank]
            next_position, set_aside = own["next_position"], own["set_aside"]
        else:
            next_position, set_aside = merge_positions(states).share(self.rank, self.world_size)
        self._go_on(next_position, set_aside)

    def start_next_pass(self, states: Sequence[Mapping[str, Any]]) -> int:
        """Begins after the pass that a run over other data was in, at the start of the order; returns its number."""
        epoch = 1 + max(state["epoch"] for state in states)
        self._go_on(epoch * len(self.dataset) + (self.rank - epoch * len(self.dataset)) % self.world_size, [])
        return epoch

    def changes_since(self, state: Mapping[str, Any]) -> list[str]:
        """What makes this another stream than that of a saved state, in words; empty when it is the same."""
        now = self._identity()
        names = {
            "dataset_length": "number of windows",
            "dataset_fingerprint": "windows (paths, frames or captions)",
            "seed": "dataloader_train.seed",
            "shuffle": "dataloader_train.shuffle",
        }
        changed = [name for name in names if state[name] != now[name]]
        return [
            f"{names[name]} of {self.dataset.file}: {short(state[name])} -> {short(now[name])}"
            if name.startswith("dataset")
            else f"{names[name]}: {state[name]} -> {now[name]}"
            for name in changed
        ]

    def _go_on(self, next_position: int, set_aside: Sequence[int]) -> None:
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
        place = {"rank": self.rank, "world_size": self.world_size, "epoch": next_position // len(self.dataset)}
        return {**self._identity(), **place, "next_position": next_position, "set_aside": set_aside}

    def _samples(self, cursor: Cursor, packer: SequentialPacker[VideoSample]) -> Iterator[VideoSample]:
        """The samples of this rank in order; those that cannot be used are quarantined here."""
        unusable: set[str] = set()
        rejected_in_a_row = 0
        # Far more than chance can explain, also for a rank that sees a small part of each epoch.
        limit = min(10 * len(self.dataset), 10_000)
        positions = cursor.positions(self.world_size)
        for position, made in zip(positions, self._fetch(positions)):
            cursor.advance(position, self.world_size)
            self.counts[f"cache_{made.cache}"] += made.cache != "off"
            item = self._finish(made.item, made, packer) if isinstance(made.item, VideoSample) else made.item
            if isinstance(item, VideoSample):
                rejected_in_a_row = 0
                unusable.discard(item.key)
                self.counts["samples"] += 1
                yield item
                continue
            if self.quarantine.add(item):
                self._check_quarantine()
            unusable.add(item.key)
            rejected_in_a_row += 1
            if rejected_in_a_row >= limit or len(unusable) == len(self.dataset):
                raise DataError(f"no sample of {self.dataset.file} can be used: {self.quarantine.describe()}")

    def _finish(
        self, sample: VideoSample, made: Made, packer: SequentialPacker[VideoSample]
    ) -> VideoSample | Rejection:
        """Tokenises here, not in the workers: it is quick, and tokenizers with threads of their own dislike a fork."""
        import torch

        ids = self.tokenizer(sample.caption)
        if len(ids) > self.config.max_caption_tokens:
            if not self.counts["captions_truncated"]:
                log.warning(
                    "caption of %s has %d tokens, cut to %d", sample.key, len(ids), self.config.max_caption_tokens
                )
            self.counts["captions_truncated"] += 1
        if made.variable_rate:
            if not self.counts["variable_rate"]:
                log.warning("%s: frames are unevenly spaced; %.2f FPS, their average, is used", sample.key, sample.fps)
            self.counts["variable_rate"] += 1
        sample.text_ids = list(ids[: self.config.max_caption_tokens])
        sample.num_tokens = sample_tokens(len(sample.text_ids), sample.num_frames, *sample.size)
        sample.video = None if made.video is None else torch.from_numpy(made.video)
        sample.latents = None if made.latents is None else torch.from_numpy(made.latents)
        if packer.fits_alone(sample):
            return sample
        size = f"{sample.size[1]}x{sample.size[0]}, {sample.num_frames} frames"
        detail = f"{sample.num_tokens} tokens ({size}); max_sequence_length is {self.config.max_sequence_length}"
        return Rejection(sample.key, "over_token_cap", detail, str(self.dataset.file))

    def _check_quarantine(self) -> None:
        self.quarantine.check(
            self._total,
            max_bad_fraction=self.config.max_bad_fraction,
            bad_samples_allowed=self.config.bad_samples_allowed,
        )

    def _fetch(self, positions: Positions) -> Iterator[Made]:
        from worldsmith.data.clips.sample_maker import SampleMaker
        from worldsmith.data.stream.fetch import fetch

        config = self.config
        maker = SampleMaker(self.dataset, seed=config.seed, shuffle=config.shuffle, latent_cache=self.latent_cache)
        return fetch(maker, positions, workers=config.num_workers, prefetch=config.prefetch_factor, counts=self.counts)


def short(value: Any) -> str:
    """A fingerprint is known by its beginning."""
    return value[:12] if isinstance(value, str) else str(value)
