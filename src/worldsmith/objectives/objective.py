"""`Objective`: the loss that a run minimizes; `LossSum`: the contribution of one batch to the loss of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from worldsmith.config import Configurable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossSum:
    """Loss of one batch, summed with the weights that `Task.weigh` returned for it before the forward pass."""

    sum: Tensor
    """Scalar with gradients. Divided by the weight of the complete step it is the step's loss."""
    samples: int
    tokens: int
    figures: Mapping[str, tuple[Tensor, float]] = field(default_factory=dict)
    """Means to log, as (sum, count) of this batch: the same names in every batch.

    "loss" is shown as the step's loss; if it is missing, `sum` divided by the weight is shown. `name[key]` is an entry
    of a mapping, omitted if its count is 0.
    """


class Objective(Configurable, ABC):
    """Base class of training objectives: computes losses from network outputs.

    An objective never calls the network; the task of the model family does.
    """

    @abstractmethod
    def __init__(self, config: Configurable.Config) -> None:
        """Builds the objective from its config."""
