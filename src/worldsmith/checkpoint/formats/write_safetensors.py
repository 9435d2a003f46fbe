"""Weights of any source into safetensors files with an index; never more of them in memory than one file holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.formats.export_folder import add_tensor
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.models.weights.finite import non_finite, require_finite

if TYPE_CHECKING:
    import torch

GIGABYTE = 10**9


def write_safetensors(
    folder: Path,
    stem: str,
    source: WeightSource,
    keys: Mapping[str, str],
    dtype_of: Callable[[str], torch.dtype],
    *,
    average: bool = False,
    max_shard_size: int = 5 * GIGABYTE,
) -> str:
    """Writes `stem.safetensors`, or `stem-00001-of-0000N.safetensors` and an index when one file would be too large.

    Args:
        keys: native name → name in the files.
        dtype_of: the dtype in which the tensor of a native name is stored.
        average: take the averaged weights where the source has them.
        max_shard_size: bytes of a file; a tensor that is larger by itself gets its own file.

    Returns the digest of all tensors (see `weights_digest`). Raises UserError for a tensor that is not finite.
    """
    import torch
    from safetensors.torch import save_file

    digest = hashlib.sha256()
    shards = plan_shards(source, keys, dtype_of, max_shard_size)
    total, weight_map = 0, {}
    for index, names in enumerate(shards, start=1):
        file = f"{stem}.safetensors" if len(shards) == 1 else f"{stem}-{index:05d}-of-{len(shards):05d}.safetensors"
        shapes = {name: source.shapes[name] for name in names}
        tensors = {name: torch.empty(shape, dtype=dtype_of(name)) for name, shape in shapes.items()}
        source.read_into(tensors, average=average)
        require_finite(source.describe, non_finite(tensors))
        for name in names:
            add_tensor(digest, keys[name], tensors[name])
            total += tensors[name].nbytes
            weight_map[keys[name]] = file
        save_file({keys[name]: tensor for name, tensor in tensors.items()}, folder / file, metadata={"format": "pt"})
    if len(shards) > 1:
        content = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return digest.hexdigest()


def plan_shards(
    source: WeightSource, keys: Mapping[str, str], dtype_of: Callable[[str], torch.dtype], max_shard_size: int
) -> list[list[str]]:
    """Native names by file, in the order of their keys."""
    shards: list[list[str]] = [[]]
    size = 0
    for name in sorted(keys, key=lambda name: keys[name]):
        count = dtype_of(name).itemsize
        for side in source.shapes[name]:
            count *= side
        if shards[-1] and size + count > max_shard_size:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += count
    return shards
