"""Repacks the samples of a step into more, smaller packs or fewer, larger ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FACTORS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class PackLimits:
    """Max tokens and samples of a packed batch, called pack (None: no limit), and the config paths that set them."""

    tokens: int | None
    samples: int | None
    tokens_path: str = "dataloader_train.max_sequence_length"
    samples_path: str = "dataloader_train.max_samples_per_batch"
    sample: int = 0
    """Max tokens of a sample, which must fit into a pack; 0: no such limit."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Division of a rank's samples in a step into packed batches, with the config overrides that produce them."""

    batches: Sequence[Sequence[Any]]
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> str:
        """Tokens of the largest packed batch and max samples of a batch, such as "8,192 tokens (2 samples)"."""
        most = max(map(tokens_of, self.batches))
        samples = max(map(len, self.batches))
        return f"{most:,} tokens ({samples} sample{'s' * (samples != 1)})"


def packings(batches: Sequence[Sequence[Any]], limits: PackLimits, *, larger: bool) -> list[Packing]:
    """Returns the ways to pack the samples of a step, largest packed batches first, including that of the run.

    Args:
        batches: Packed batches (lists of samples) of a rank in a step of the run.
        limits: Limits of a packed batch.
        larger: Whether packed batches may be larger than those of the run.
    """
    merged = [merge(batches, times, limits) for times in reversed(FACTORS) if larger and len(batches) % times == 0]
    halved = [made for times in FACTORS if (made := split(batches, times, limits)) is not None]
    return [*merged, Packing(batches), *halved]


def merge(batches: Sequence[Sequence[Any]], times: int, limits: PackLimits) -> Packing:
    """Returns the packing that merges each `times` consecutive packed batches into one.

    Its overrides multiply the limits by `times`. The number of batches must be divisible by `times`.
    """
    groups = [batches[start : start + times] for start in range(0, len(batches), times)]
    tokens, samples = (limit and limit * times for limit in (limits.tokens, limits.samples))
    return Packing(
        [[sample for pack in group for sample in pack] for group in groups], limit_overrides(limits, tokens, samples)
    )


def split(batches: Sequence[Sequence[Any]], times: int, limits: PackLimits) -> Packing | None:
    """Returns the packing that splits each packed batch into `times`, with the overrides that reduce the limits.

    None if a packer with smaller limits would not produce these batches.
    """
    parts = [part for pack in batches for part in balanced(pack, times)]
    if not all(parts):
        return None
    most = max(map(len, parts))
    tokens, samples = limits.tokens, limits.samples
    if samples is not None:
        if samples % times:
            return None
        samples //= times
        if most > samples:
            return None
    if tokens is not None:
        smaller = max(limits.sample, *map(tokens_of, parts)) + 1
        if smaller >= tokens:
            return None
        tokens = smaller
    elif samples is None:
        return None
    return Packing(parts, limit_overrides(limits, tokens, samples))


def balanced(pack: Sequence[Any], count: int) -> list[list[Any]]:
    """Splits a packed batch into `count` lists of samples with similar token counts (greedy, longest sample first)."""
    parts: list[list[Any]] = [[] for _ in range(count)]
    for sample in sorted(pack, key=lambda sample: -sample.num_tokens):
        min(parts, key=lambda part: (tokens_of(part), len(part))).append(sample)
    return parts


def tokens_of(pack: Sequence[Any]) -> int:
    """Returns the number of tokens of a packed batch."""
    return sum(sample.num_tokens for sample in pack)


def limit_overrides(limits: PackLimits, tokens: int | None, samples: int | None) -> dict[str, str]:
    """Returns the overrides (config path -> value) that set the max tokens and samples of a packed batch.

    A limit that is None has no override.
    """
    found = {limits.tokens_path: tokens, limits.samples_path: samples}
    return {path: str(limit) for path, limit in found.items() if limit is not None}
