"""Neighbourhood attention by NATTEN's CUDA kernels, sample by sample: https://natten.org, `pip install natten`.

NATTEN attends to the neighbourhood and to the text (its `additional_keys`) in two calls and merges them by their
log-sum-exps, gradients included.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from worldsmith.families.cosmos3.attention.modes import AxisWindow

OPERATIONS = {1: "na1d", 2: "na2d", 3: "na3d"}


@dataclass(frozen=True, slots=True)
class NattenSegment:
    """One sample."""

    latents: slice
    """Its rows in the latent stream."""
    text: slice
    """Its rows in the text stream."""
    grid: tuple[int, ...]
    """Its latent tokens along each axis longer than 1."""
    windows: tuple[AxisWindow, ...]
    """The neighbourhood along those axes; empty: every latent sees all."""


@dataclass(frozen=True, slots=True)
class NattenPlan:
    """The samples of a pack, in order."""

    segments: tuple[NattenSegment, ...]

    def to(self, dtype: torch.dtype) -> NattenPlan:
        """The plan holds no numbers that would change."""
        return self


def natten_available(device: torch.device) -> bool:
    """Whether NATTEN and its compiled kernels can be used on a device."""
    if device.type != "cuda" or importlib.util.find_spec("natten") is None:
        return False
    return bool(getattr(importlib.import_module("natten"), "HAS_LIBNATTEN", False))


def run_natten(q: Tensor, k: Tensor, v: Tensor, text_k: Tensor, text_v: Tensor, plan: NattenPlan) -> Tensor:
    """`latent_attention` of a `NattenPlan`."""
    repeat = q.shape[1] // k.shape[1]  # not every NATTEN kernel shares key heads among query heads
    k, v, text_k, text_v = (x.repeat_interleave(repeat, dim=1) for x in (k, v, text_k, text_v))
    return torch.cat(
        [
            sample_attention(q[s.latents], k[s.latents], v[s.latents], text_k[s.text], text_v[s.text], s)
            for s in plan.segments
        ]
    )


def sample_attention(q: Tensor, k: Tensor, v: Tensor, text_k: Tensor, text_v: Tensor, segment: NattenSegment) -> Tensor:
    """One sample: q, k, v [tokens, heads, d], text_k, text_v [text tokens, heads, d]; like q."""
    if not segment.windows:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, torch.cat((text_k, k)), torch.cat((text_v, v))))
        return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
    operation = getattr(importlib.import_module("natten"), OPERATIONS[len(segment.grid)])
    out: Tensor = operation(
        *(x.unflatten(0, segment.grid)[None] for x in (q, k, v)),
        kernel_size=tuple(own.window for own in segment.windows),
        stride=tuple(own.stride for own in segment.windows),
        dilation=tuple(own.dilation for own in segment.windows),
        is_causal=tuple(own.causal for own in segment.windows),
        additional_keys=text_k[None],
        additional_values=text_v[None],
    )
    return out[0].flatten(0, len(segment.grid) - 1)
