"""Normalization of action rows, and the statistics file that it is read from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.config.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Method = Literal[
    "none", "quantile", "quantile_rot", "minmax", "meanstd", "quantile_rot_scale_floor", "asinh_rot",
    "piecewise_asinh_rot",
]  # fmt: skip
CLAMPED = ("quantile", "quantile_rot", "minmax", "quantile_rot_scale_floor")
"""Methods whose result can be clamped to [-1, 1]."""
NAMES = ("mean", "std", "min", "max", "q01", "q99")
"""Statistics of a channel in a file."""
MAX_DEVIATION = 5.0
"""Largest normalized value of the data with `quantile_rot_scale_floor`."""
UNIT = math.asinh(1.0)
RENAMED = {"3d": "axis_angle", "6d": "rot6d", "9d": "matrix", "frame_wise_relative": "frame_wise"}
"""Values in the metadata of statistics files of `cosmos_framework` → own values."""


@dataclass(frozen=True, slots=True)
class Normalizer:
    """Invertible map between action rows in the units of the robot and in those of the network, per channel.

    With z = (x - offset) / scale: `asinh_rot` returns asinh(z) / asinh(1), `piecewise_asinh_rot` returns z inside
    [-1, 1] and sign(z)·(1 + asinh(|z| - 1)) outside, every other method z. Offset and scale are the mean and the
    standard deviation for `meanstd`, else the middle and the half width of the range from the minimum to the maximum
    (`minmax`) or from the 1st to the 99th percentile. `quantile_rot_scale_floor` raises the scale until no value of
    the data is above `MAX_DEVIATION`. Method names and formulas are those of `cosmos_framework`.
    """

    method: str
    offset: Tensor
    scale: Tensor
    clamp: bool = False
    """Whether normalized values are clamped to [-1, 1]; clamped values cannot be restored."""

    def normalize(self, rows: Tensor) -> Tensor:
        """Returns rows [..., channels] in the units of the network."""
        z = (rows - self.offset) / self.scale
        if self.method == "asinh_rot":
            return z.asinh() / UNIT
        if self.method == "piecewise_asinh_rot":
            return z.where(z.abs() <= 1, z.sign() * (1 + (z.abs() - 1).asinh()))
        return z.clamp(-1, 1) if self.clamp else z

    def denormalize(self, rows: Tensor) -> Tensor:
        """Returns normalized rows [..., channels] in the units of the robot."""
        if self.method == "asinh_rot":
            rows = (rows * UNIT).sinh()
        elif self.method == "piecewise_asinh_rot":
            rows = rows.where(rows.abs() <= 1, rows.sign() * (1 + (rows.abs() - 1).sinh()))
        return rows * self.scale + self.offset


def build_normalizer(
    method: str, content: str | Mapping[str, Any], width: int, *, where: str = "statistics", clamp: bool = False
) -> Normalizer:
    """Returns the normalizer of a method, the identity for "none".

    Args:
        method: Name of the method.
        content: Content of a statistics file, as text or parsed: the blocks `global` and `global_raw` (for methods with
            "rot" in their name), or the values per channel by name directly.
        width: Number of channels.
        where: Name of the file for messages.
        clamp: Whether normalized values are clamped to [-1, 1].

    Raises:
        UserError: If a value is missing or invalid, or the content has another number of channels.
    """
    import numpy as np
    import torch

    if method == "none":
        return Normalizer(method, torch.zeros(()), torch.ones(()))
    block = "global_raw" if "rot" in method else "global"
    names: tuple[str, ...] = {"meanstd": ("mean", "std"), "minmax": ("min", "max")}.get(method, ("q01", "q99"))
    names = (*names, "min", "max") if method == "quantile_rot_scale_floor" else names
    try:
        blocks = json.loads(content) if isinstance(content, str) else content
        found = [np.asarray(blocks.get(block, blocks)[name], np.float64) for name in names]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{where}: expected JSON with {', '.join(names)} of each channel, directly or in '{block}', for the "
            f"normalization {method}; found an error at {error}"
        ) from None
    for name, values in zip(names, found):
        if values.shape != (width,) or not np.isfinite(values).all():
            raise UserError(
                f"{where}: {name}: expected {width} finite numbers, one per channel of an action row; "
                f"found {values.tolist()!s:.80}"
            )
    low, high, *limits = (torch.from_numpy(values).float() for values in found)
    if method == "meanstd":
        return Normalizer(method, low, high.clamp(min=1e-8))
    offset, scale = (high + low) / 2, (high - low).clamp(min=1e-8) / 2
    if limits:
        deviation = torch.maximum(*((limit - offset).abs() for limit in limits))
        scale = scale.maximum((deviation / MAX_DEVIATION).clamp(min=1e-8))
    return Normalizer(method, offset, scale, clamp)


def check_convention(content: str, expected: Mapping[str, Any], where: str) -> None:
    """Raises UserError if the metadata in a statistics file state another convention of the actions than `expected`.

    Metadata without a key fit. Frame rates that differ by less than 1 % are equal.

    Args:
        content: Valid content of a statistics file.
        expected: Keys of the metadata with the values of the dataset, such as "fps".
        where: Name of the file.
    """
    metadata = json.loads(content).get("metadata")
    for name, value in expected.items() if isinstance(metadata, dict) else ():
        found = metadata.get(name, value)
        is_near = name == "fps" and isinstance(found, float | int) and math.isclose(found, value, rel_tol=0.01)
        if RENAMED.get(str(found), found) != value and not is_near:
            raise UserError(
                f"{where}: {name} is {found!r:.80} in its metadata, but {value} in the dataset, so its statistics are "
                "those of other actions. Compute those of this dataset with `worldsmith dataset statistics`; if the "
                f"actions do not depend on {name}, remove it from the metadata"
            )


def compute_statistics(rows: np.ndarray, rotations: Sequence[bool], metadata: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of a statistics file: `metadata`, and statistics of each channel in two blocks.

    `global_raw` has the statistics of all channels; `global` replaces those of rotations by values with which every
    method is the identity.

    Args:
        rows: Action rows [n, channels] in the units of the robot.
        rotations: Whether each channel belongs to a rotation, bool [channels].
        metadata: JSON data that describes the rows.
    """
    import numpy as np

    low, high = np.quantile(rows, (0.01, 0.99), axis=0)
    raw = dict(zip(NAMES, (rows.mean(0), rows.std(0), rows.min(0), rows.max(0), low, high)))
    identity = dict(zip(NAMES, (0.0, 1.0, -1.0, 1.0, -1.0, 1.0)))
    plain = {name: np.where(rotations, identity[name], values) for name, values in raw.items()}
    blocks = {"global": plain, "global_raw": raw}
    return {"metadata": metadata} | {
        name: {key: [float(f"{value:.9g}") for value in values] for key, values in block.items()}
        for name, block in blocks.items()
    }
