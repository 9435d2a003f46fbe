"""Which shards a pattern names: `clips-{000..003}.tar`, `s3://bucket/clips-*.tar`, a folder of tars."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from worldsmith.data.stream.errors import DataError

TAR = ".tar"
COMPRESSED = re.compile(r"\.(tgz|tar\.[a-z0-9]+)$", re.IGNORECASE)
BRACES = re.compile(r"\{([^{}]*)\}")
MAX_SHARDS = 1_000_000
"""Shards that a pattern may name."""
MAX_DIGITS = 18
"""Digits of a number in braces."""
RANGE = re.compile(r"(\d+)\.\.(\d+)")


def shard_pattern(path: str) -> str | None:
    """The pattern when `path` names shards, or is a folder that has some in [train/]; None for everything else."""
    if path.endswith(TAR) or COMPRESSED.search(path):
        return path
    if path and Path(path).is_dir():
        for folder in (Path(path, "train"), Path(path)):
            if any(folder.glob(f"*{TAR}")):
                return f"{folder}/*{TAR}"
    return None


def find_shards(pattern: str) -> list[str]:
    """The addresses in order, each once. Raises DataError for none, for too many and for compressed tars."""
    if COMPRESSED.search(pattern):
        raise DataError(f"{pattern}: a compressed tar has no random access; unpack it to {TAR} (video gains nothing)")
    found = list(dict.fromkeys(file for one in limited(braces(pattern), pattern) for file in matches(one)))
    if not found:
        raise DataError(f"no shard matches {pattern}")
    return found


def braces(pattern: str) -> Iterator[str]:
    """Expands brace patterns such as `a{1,2}` and `a{00..12}` as a shell does; leading zeros are kept.

    Raises DataError for a range of too many.
    """
    group = BRACES.search(pattern)
    if group is None:
        yield pattern
        return
    choices: Sequence[str] = group[1].split(",")
    if numbers := RANGE.fullmatch(group[1]):
        first, last = numbers.groups()
        if max(len(first), len(last)) > MAX_DIGITS or abs(int(last) - int(first)) >= MAX_SHARDS:
            raise too_many(pattern)
        step = 1 if int(first) <= int(last) else -1
        width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
        choices = [f"{number:0{width}d}" for number in range(int(first), int(last) + step, step)]
    for choice in choices:
        yield from braces(pattern[: group.start()] + choice + pattern[group.end() :])


def limited(files: Iterator[str], pattern: str) -> Iterator[str]:
    """The files. Raises DataError after `MAX_SHARDS` of them."""
    yield from itertools.islice(files, MAX_SHARDS)
    if next(files, None) is not None:
        raise too_many(pattern)


def too_many(pattern: str) -> DataError:
    return DataError(
        f"{pattern:.200} names too many shards: expected at most {MAX_SHARDS:,}, with numbers of at most {MAX_DIGITS} "
        "digits. Name a smaller range, or a folder"
    )


def matches(pattern: str) -> list[str]:
    """The files that `*` and `[…]` stand for, sorted by name; one without them as it is."""
    import fsspec

    if not any(sign in pattern for sign in "*["):
        return [pattern]
    chain, sign, last = pattern.rpartition("::")
    try:
        system, path = fsspec.url_to_fs(last)
        found = sorted(str(match) for match in system.glob(path))
    except Exception as error:  # each storage has errors of its own
        raise DataError(f"{pattern} cannot be listed: {type(error).__name__}: {error}") from None
    return [chain + sign + (system.unstrip_protocol(match) if "://" in last else match) for match in found]


def short_names(files: Sequence[str]) -> list[str]:
    """The addresses from where they part, without the ending: what samples are called by, wherever the data lie."""
    folders = [posixpath.dirname(file).split("/") for file in files]
    common = len(list(itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*folders))))
    return ["/".join(file.split("/")[common:]).removesuffix(TAR) for file in files]
