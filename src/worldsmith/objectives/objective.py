"""`Objective`: the loss that a run minimizes; `BatchLoss`: the contribution of one batch to the loss of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from worldsmith.config import Configurable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """Summed loss of one batch, from which the trainer computes the mean loss of a step, with metrics to log."""

    sum: Tensor
    """Loss sum of the batch, a scalar with gradients. The trainer divides it by the total weight (`Task.weigh`) of all
    batches of the step."""
    samples: int
    tokens: int
    metrics: Mapping[str, tuple[Tensor, float]] = field(default_factory=dict)
    """Metric name -> (sum, count) of this batch, of which the mean over the step is logged. Every batch must have the
    same names.

    "loss" is logged as the loss of the step; without it, `sum` divided by the weight is logged. A name `metric[key]` is
    logged as an entry of the mapping `metric`, and omitted if its count is 0.
    """


class Objective(Configurable, ABC):
    """Base class of training objectives, which compute losses from outputs of the network.

    An objective never calls the network; the `Task` of the model family does.
    """

    class Config(Configurable.Config):
        only_family: ClassVar[str] = ""
        """Name of the model family whose runs can have this objective; "": any that supports its base class."""

    @abstractmethod
    def __init__(self, config: Configurable.Config) -> None:
        """Builds the objective from its config."""
