"""Encodes the samples of a run into its latent cache before training: in `worldsmith encode`, or at the start of a run.

The encoders are loaded one after the other: that of clips first, and when it is freed, that of captions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from worldsmith.config.errors import UserError
from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.sample_maker import SampleResult
from worldsmith.distributed.world import World
from worldsmith.models.model import Model
from worldsmith.tasks.registry import task_of
from worldsmith.tasks.task import SampleEncoder

logger = logging.getLogger(__name__)

LOGGED_FAILURES = 10
"""Max number of samples that are logged one by one because they could not be encoded."""


@dataclass(slots=True)
class Encoded:
    """Numbers of samples of a process: encoded, already in the latent cache, skipped, and failed."""

    encoded: int = 0
    found: int = 0
    """Number of samples that were already cached, or that another process encoded meanwhile."""
    left_out: int = 0
    failed: int = 0
    """Number of samples that were not encoded because of an error of the encoder."""

    def count_failure(self, name: str, reason: str) -> None:
        """Counts a sample that could not be encoded; logs it if it is one of the first 10."""
        self.failed += 1
        if self.failed <= LOGGED_FAILURES:
            logger.warning("%s cannot be encoded, the others continue: %s", name, reason)


@dataclass(slots=True)
class EncodedPosition:
    """Outcome for one position of the stream of a split. It contains no tensors and can be sent to another process."""

    split: str
    made: SampleResult[Any]
    """Result of reading the sample: its `item` is the key of the sample, or why the sample was rejected."""
    is_new: bool = False
    """Whether the sample was encoded; False: it was rejected, or already cached."""
    captions: list[Any] = field(default_factory=list)
    """Captions of the sample, which are encoded after all clips."""


class PositionEncoder:
    """Function that encodes the sample at a single position, in any order; `encode_samples` encodes a whole shard."""

    def __init__(self, encoders: Mapping[str, SampleEncoder]) -> None:
        self.encoders = encoders
        self.makers = {split: encoder.task.loader().maker for split, encoder in encoders.items()}
        for encoder in encoders.values():
            encoder.defer_captions()

    def __call__(self, place: tuple[str, int]) -> EncodedPosition:
        """Reads and encodes the sample at `place`, (split, position in its stream), but not its caption.

        Raises:
            UserError: If the sample cannot be written to the latent cache.
        """
        split, position = place
        made, encoder = self.makers[split][position], self.encoders[split]
        if isinstance(made.item, Rejection):
            return EncodedPosition(split, made)
        is_new = encoder.encode(made.item)
        require_written(encoder)
        return EncodedPosition(split, SampleResult(made.item.key, made.notes), is_new, encoder.take_captions())


def sample_encoders(run: Any, model: Model, world: World) -> dict[str, SampleEncoder]:
    """Returns the sample encoders of a run by split: "train", and "val" if it validates with a latent cache.

    Args:
        run: Config of the run, a `RunConfig`.
        model: Model on the meta device. Its network gets no memory; its encoders are loaded to the device of `world`.
        world: This process, and the number of processes that share the samples.

    Raises:
        UserError: If the family has no encoder.
    """
    import torch

    model.device = torch.device(world.device)
    make, found = task_of(run.model.name), {}
    for split in ("train", *["val"] * bool(run.trainer.run_validation and run.dataloader_val)):
        data = getattr(run, f"dataloader_{split}")
        encoder = make(model=model, objective=run.objective, data=data, world=world, split=split).encoder  # type: ignore[arg-type]
        if split == "train" or data.latent_cache:
            encoder.keep_all_samples()
            found[split] = encoder
    return found


def encode_samples(
    encoders: Mapping[str, SampleEncoder],
    epochs: int,
    shown: Callable[[int, int], None],
    packs: Mapping[str, int | None] | None = None,
    max_failures: int = 0,
) -> Encoded:
    """Encodes every n-th sample of each split and epoch, for n processes; returns the counts. Frees the encoders.

    Args:
        encoders: Sample encoders of this process by split.
        epochs: Number of epochs to encode.
        shown: Called with (number of samples that this process has finished, number of samples of this process).
        packs: Number of packs that a process of the run reads, by split; samples for later packs are not encoded. None,
            also for a split: all samples are encoded.
        max_failures: Number of samples for which an error of the encoder is counted and not raised.

    Raises:
        UserError: If samples cannot be written to the latent cache.
    """
    done, before = Encoded(), 0
    loaders = {encoder: encoder.task.loader() for encoder in encoders.values()}
    shares = [range(loader.rank, epochs * len(loader.dataset), loader.world_size) for loader in loaders.values()]
    total = sum(map(len, shares))
    for (split, encoder), loader, share in zip(encoders.items(), loaders.values(), shares):
        encoder.defer_captions()
        are_enough, read, count = sample_limit(loader.config, (packs or {}).get(split)), 0, 0
        for sample in loader.first_samples(epochs):
            try:
                is_new = encoder.encode(sample)
                done.encoded, done.found = done.encoded + is_new, done.found + (not is_new)
            except UserError:
                raise
            except Exception as error:
                if done.failed == max_failures:
                    raise
                done.count_failure(sample.key, f"{type(error).__name__}: {error}")
            read, count = share.index(sample.position) + 1, count + 1
            shown(before + read, total)
            require_written(encoder)
            if are_enough(sample):
                break
        else:
            read = len(share)
        done.left_out += read - count
        encoder.encode_captions()
        require_written(encoder)
        before, total = before + read, total - (len(share) - read)
        shown(before, total)
    return done


def sample_limit(config: PackingDataLoader.Config, packs: int | None) -> Callable[[Any], bool]:
    """Returns a function that is called with each sample of a stream, and returns True when no later one is needed.

    Args:
        config: Limits of a pack. Besides its samples, `lookahead` samples may wait for a later pack.
        packs: Number of packs to fill; None: every sample is needed.
    """
    tokens, samples, waiting = 0, 0, list[int]()  # the samples that may wait are the largest ones

    def count(sample: Any) -> bool:
        nonlocal tokens, samples
        # Training drops captions, so that more samples can fit into a pack than with them.
        heappush(waiting, max(1, sample.num_tokens - len(sample.text_ids)))
        if len(waiting) > config.lookahead:
            tokens, samples = tokens + heappop(waiting), samples + 1
        limits = ((tokens, config.max_sequence_length), (samples, config.max_samples_per_batch))
        return packs is not None and any(limit is not None and n >= packs * limit for n, limit in limits)

    return count


def require_written(encoder: SampleEncoder) -> None:
    """Raises UserError if the encoder could not write some samples to the latent cache."""
    if lost := encoder.task.counts().get("cache_unwritten"):
        raise UserError(f"{lost} encoded samples cannot be written to {encoder.require_cache()}: free disk space")
