"""Collates chat samples into the input tensors of a forward pass: one packed row, or one padded row per sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from worldsmith.families.vision_language.network.backbone import visual_of
from worldsmith.families.vision_language.network.forward import Inputs, plan_vision
from worldsmith.models.real_values import real_values
from worldsmith.tasks.device_copy import move_tensors

IGNORED = -100


class Conversation(Protocol):
    """Protocol of a tokenized conversation with its images and videos; sequence tensors are int64 [N], N the tokens."""

    @property
    def input_ids(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor:
        """Target tokens, not shifted; -100 at tokens that are not supervised."""

    @property
    def token_types(self) -> Tensor:
        """Type of each token: 0 text, 1 image, 2 video."""

    @property
    def image_patches(self) -> Tensor | None:
        """Patches of all images, uint8 [patches, values]; None without images."""

    @property
    def image_grids(self) -> Tensor | None:
        """Size of each image in patches, int64 [images, 3]: frames, rows and columns; None without images."""

    @property
    def video_patches(self) -> Tensor | None: ...
    @property
    def video_grids(self) -> Tensor | None: ...
    @property
    def video_seconds(self) -> Tensor | None:
        """Seconds between temporal positions of each video's patch grid, float32 [videos]; None without videos."""


def make_inputs(
    samples: Sequence[Conversation],
    network: Any,
    *,
    packed: bool,
    normalize: Callable[[Tensor, str], Tensor],
    device: torch.device,
) -> Inputs:
    """Returns the inputs of a forward pass over a batch of conversations.

    Args:
        samples: Conversations of the batch.
        network: The transformers model.
        packed: Whether the samples share one row. False: a padded row per sample.
        normalize: Converts uint8 patches of an "image" or "video" to float32.
        device: Device of the inputs.
    """
    return normalize_patches(move_tensors(collate(samples, network, packed=packed), device), normalize)


def collate(samples: Sequence[Conversation], network: Any, *, packed: bool) -> Inputs:
    """Returns the inputs of a forward pass on the CPU, with uint8 patches; needs no weights of the network.

    Args:
        samples: Conversations of the batch.
        network: The transformers model.
        packed: Whether the samples share one row. False: a padded row per sample.
    """
    with real_values():
        rows = collate_tokens(samples, network, packed=packed)
    if visual_of(network) is None:
        return Inputs(**rows)
    return Inputs(**rows, **collate_media(samples, network, rows["input_ids"].flatten()))


def normalize_patches(inputs: Inputs, normalize: Callable[[Tensor, str], Tensor]) -> Inputs:
    """Returns the inputs with the `patches` for their `raw_patches`, on the device of these.

    Args:
        inputs: Inputs of a batch.
        normalize: Converts uint8 patches of an "image" or "video" to float32.
    """
    if not inputs.raw_patches:
        return inputs
    return replace(inputs, patches=torch.cat([normalize(rows, kind) for kind, rows in inputs.raw_patches.items()]))


def collate_tokens(samples: Sequence[Conversation], network: Any, *, packed: bool) -> dict[str, Any]:
    """Returns the fields of `Inputs` that describe the tokens of a batch, by field name.

    They are token and position ids, mask, targets and, for a packed row, the lengths and borders of the samples.

    Args:
        samples: Conversations of the batch.
        network: The transformers model.
        packed: Whether the samples share one row; False: a padded row per sample.
    """
    lengths = [len(sample.input_ids) for sample in samples]
    positions = [positions_of(sample, network) for sample in samples]
    if packed:
        ids = torch.cat([sample.input_ids for sample in samples])[None]
        position_ids = torch.cat(positions, dim=-1)[..., None, :]
        starts = [sum(lengths[:index]) for index in range(len(samples))]
        mask = None
    else:
        longest = max(lengths)
        ids = torch.stack([pad_to_length(sample.input_ids, longest) for sample in samples])
        position_ids = torch.stack([pad_to_length(position, longest) for position in positions], dim=-2)
        starts = [index * longest for index in range(len(samples))]
        mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    supervised = [(sample.labels[1:] != IGNORED).nonzero()[:, 0] for sample in samples]
    targets = [sample.labels[1:][chosen] for sample, chosen in zip(samples, supervised)]
    predicting = [start + chosen for start, chosen in zip(starts, supervised)]
    return {
        "input_ids": ids,
        "position_ids": position_ids[0] if visual_of(network) is None else position_ids,
        "attention_mask": mask,
        "predicting": torch.cat(predicting),
        "targets": torch.cat(targets),
        "sample_lengths": lengths if packed else None,
        "cu_seqlens": F.pad(torch.tensor(lengths).cumsum(0, dtype=torch.int32), (1, 0)) if packed else None,
    }


def positions_of(sample: Conversation, network: Any) -> Tensor:
    """Returns the position ids of a sample of N tokens: [1, N] for a text decoder, [4, N] for a vision-language model.

    The four rows are the index of the token in the sample, then the three axes of mRoPE (time, row, column).
    """
    plain = torch.arange(len(sample.input_ids))[None]
    if visual_of(network) is None:
        return plain
    axes, _ = network.model.get_rope_index(
        sample.input_ids[None],
        mm_token_type_ids=sample.token_types[None],
        image_grid_thw=sample.image_grids,
        video_grid_thw=sample.video_grids,
        second_per_grid_ts=sample.video_seconds,
    )
    return torch.cat((plain, axes[:, 0]))


def collate_media(samples: Sequence[Conversation], network: Any, ids: Tensor) -> dict[str, Any]:
    """Returns the fields of `Inputs` that describe the images and videos of a batch, by field name.

    A batch without media gets a dummy image whose features are not used and whose gradients are zero. So all ranks call
    the same collectives, whichever media their batches contain.

    Args:
        samples: Conversations of the batch.
        network: The vision-language model of transformers.
        ids: Token ids of the batch, in the flattened rows.

    Raises:
        ValueError: If the batch does not have one placeholder token per visual feature.
    """
    settings = network.config.vision_config
    merge = settings.spatial_merge_size
    raw, grids, places = {}, [], [torch.zeros(0, dtype=torch.int64)]
    for kind in ("image", "video"):
        own = [(getattr(sample, f"{kind}_patches"), getattr(sample, f"{kind}_grids")) for sample in samples]
        own = [(rows, grid) for rows, grid in own if grid is not None and len(grid)]
        if not own:
            continue
        raw[kind] = torch.cat([rows for rows, _ in own])
        grids += [grid for _, grid in own]
        with real_values():
            places.append((ids == getattr(network.config, f"{kind}_token_id")).nonzero()[:, 0])
        if len(places[-1]) != len(raw[kind]) // merge**2:
            raise ValueError(
                f"the {kind}s of the batch have {len(raw[kind]) // merge**2} visual features, but its conversations "
                f"have {len(places[-1])} {kind} tokens"
            )
    patches = None
    if not raw:
        patches = torch.zeros(merge**2, settings.in_channels * settings.temporal_patch_size * settings.patch_size**2)
    with real_values():
        joined = torch.cat(grids or [torch.tensor([[1, merge, merge]])])
        vision = plan_vision(visual_of(network), joined)
        rows, sizes = torch.cat(places), joined.tolist()
    return {"patches": patches, "raw_patches": raw, "grids": sizes, "vision": vision, "visual_rows": rows}


def pad_to_length(tokens: Tensor, length: int) -> Tensor:
    """Returns `tokens` [..., N] padded with zeros at the end to [..., length]."""
    return F.pad(tokens, (0, length - tokens.shape[-1]))
