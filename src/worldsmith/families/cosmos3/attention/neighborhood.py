"""NATTEN's neighbourhoods as exact masks, so that they can be computed by any attention on any device.

A neighbourhood is independent along each axis of a grid: a token sees another when it does so along all axes.
Definition: NATTEN, https://natten.org (operations `na1d`, `na2d`, `na3d`), and "Generalized Neighborhood Attention",
https://arxiv.org/abs/2504.16922, for strides.
"""

from __future__ import annotations

import torch
from torch import Tensor

from worldsmith.families.cosmos3.attention.modes import AxisWindow


def axis_mask(length: int, own: AxisWindow) -> Tensor:
    """Which positions see which along one axis: bool [length (query), length (key)].

    - Dilation d splits the axis into d groups (position modulo d); only tokens of one group meet, and the rest of the
      rules count positions inside a group.
    - `stride` consecutive queries share the window of their leader: the middle one (the right middle of an even
      number), or the last one when causal; never past the group's end.
    - A window of w holds w // 2 positions left of the leader and the rest from it on. At the borders it is moved
      inwards, not cut, so every query sees exactly w positions.
    - A causal window ends at the leader and is cut at the left border; a query sees the part of it up to itself.
    """
    position = torch.arange(length)
    group, index = position % own.dilation, position // own.dilation
    members = (length - group + own.dilation - 1) // own.dilation
    within = own.stride - 1 if own.causal else own.stride // 2
    leader = torch.minimum(index // own.stride * own.stride + within, members - 1)
    if own.causal:
        first, last = leader - own.window + 1, index
    else:
        first = torch.minimum((leader - own.window // 2).clamp(min=0), members - own.window)
        last = first + own.window - 1
    same_group = group[:, None] == group
    return same_group & (first[:, None] <= index) & (index <= last[:, None])
