"""`quick_plan`: what a process holds of the weights and their states, and the size of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from worldsmith.training.parallel import plan_degrees
from worldsmith.training.preflight import Memory, build_optimizer, checkpoint_bytes, count_weights

if TYPE_CHECKING:
    from worldsmith.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class QuickPlan:
    """Numbers of the whole network, and bytes."""

    parameters: int
    trained: int
    states: Mapping[str, int]
    """Between two steps, of the process that has most, by kind."""
    checkpoint_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def quick_plan(config: Trainer.Config, ranks: int) -> QuickPlan:
    """Raises ValueError for degrees that do not fit so many ranks."""
    degrees = plan_degrees(config.model.config, ranks)
    network = config.model.config.build(device="meta").network
    build_optimizer(config, network)
    states = Memory.of(config, network, degrees).parts
    return QuickPlan(*count_weights(network), states, checkpoint_bytes(config, network))
