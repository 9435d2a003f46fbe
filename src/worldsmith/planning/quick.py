"""`quick_plan`: what a process holds of the weights and their states, and the size of a checkpoint: by arithmetic.

Nothing here imports torch, unless the model's family does not know the shapes of its parameters without a network, or a
setting of the optimizer may change its state (`training.optimizer:parameter_state`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from worldsmith.models.weights.table import Table, counts, table_of, weight_table
from worldsmith.training.parallel import plan_degrees
from worldsmith.training.preflight import build_optimizer, kept_checkpoints
from worldsmith.training.state_bytes import checkpoint_bytes, state_bytes

if TYPE_CHECKING:
    from worldsmith.models.model import Model
    from worldsmith.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class QuickPlan:
    """Numbers of the whole network, and bytes."""

    parameters: int
    trained: int
    states: Mapping[str, int]
    """Of the process that has most, by kind: exact, apart from the gradients of what is trained and not used."""
    checkpoint_bytes: int
    """One checkpoint on disk: exactly its tensors, and about what each tensor's files take beside it."""
    checkpoint_tensors: int = 0
    """Exactly its tensors."""
    kept_checkpoints: int = 1
    """The most that are on the disk at once."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def quick_plan(config: Trainer.Config, ranks: int) -> QuickPlan:
    """References of the config are resolved. Raises ValueError for degrees that do not fit so many ranks."""
    degrees, table = plan_degrees(config.model.config, ranks), run_table(config)
    states, checkpoint = state_bytes(table, config, degrees), checkpoint_bytes(table, config, degrees)
    parts = {"parameters" if name == "weights" else name: count for name, count in states.parts.items()}
    kept = kept_checkpoints(config)
    return QuickPlan(*counts(table), parts, checkpoint.files, checkpoint.tensors, kept)


def run_table(config: Trainer.Config) -> Table:
    """Every weight of the run; the network is built, without memory, where arithmetic does not know it."""
    table = weight_table(config.model.config, config.optimizer.keys_to_select)
    if table is not None:
        return table
    model: Model = config.model.config.build(device="meta")
    build_optimizer(config, model.network)
    return table_of(model)
