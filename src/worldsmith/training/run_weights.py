"""`RunWeights`: raw and EMA weights of a run, their initial values, and the frozen weights."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING

from worldsmith.checkpoint.run.frozen_weights import describe_frozen_weights
from worldsmith.checkpoint.sources.checkpoint_weights import AVERAGE, LIVE
from worldsmith.checkpoint.sources.warm_start import LoadReport, load_weights
from worldsmith.models.parameter_names import native_parameters
from worldsmith.training.start_checks import require_training_state, strip_weight_prefix

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.distributed.world import World
    from worldsmith.models.ema import PowerEMA
    from worldsmith.models.model import Model
    from worldsmith.models.weight_sum import WeightSum
    from worldsmith.training.run_config import RunConfig

logger = logging.getLogger(__name__)


class RunWeights:
    """Raw weights of a network and its EMA weights, if the run has any. All ranks must call the methods together."""

    def __init__(self, config: RunConfig, model: Model, ema: PowerEMA | None, world: World) -> None:
        self.config, self.model, self.ema, self.world = config, model, ema, world

    def state_dict(self, *, only_trained: bool = False) -> dict[str, Tensor]:
        """Returns the weights `net.*` and `net_ema.*`, not copies.

        Args:
            only_trained: Omit weights that are not trained.
        """
        parameters = native_parameters(self.model.network)
        state = {LIVE + name: parameter.detach() for name, parameter in parameters.items()}
        if self.ema is not None:
            state |= {AVERAGE + name: tensor for name, tensor in self.ema.state_dict().items()}
        if not only_trained:
            return state
        return {name: tensor for name, tensor in state.items() if parameters[strip_weight_prefix(name)].requires_grad}

    def load_initial(self, *, with_state: bool = False) -> LoadReport | None:
        """Loads the initial weights of a new run, initializes weights that are not in them by seed, and logs a report.

        EMA weights that are not loaded start as a copy of the raw weights.

        Args:
            with_state: Whether the weights must come from a checkpoint with a training state, which is checked first.

        Returns:
            Report on the loaded weights; None for random weights.
        """
        settings, seed, start = self.config.checkpoint, self.config.trainer.seed, self.config.initial_weights()
        report = None
        if start is None:
            self.model.draw_weights(seed)
        else:

            def prepare(report: LoadReport) -> None:
                if with_state:
                    require_training_state(report, self.config)
                if report.left:
                    self.model.draw_weights(seed, {strip_weight_prefix(name) for name in report.left})

            report = load_weights(
                start.path,
                self.state_dict(),
                keys_to_skip=settings.keys_to_skip_loading,
                spec=self.config.model,
                average_as_live=settings.load_ema_to_reg,
                prepare=prepare,
                field=start.field,
                quantized=self.model.quantized_layers,
                adapter=settings.load_adapter,
                world=self.world,
            )
            for line in ([start.describe] if start.unread else []) + report.lines():
                logger.info("%s", line)
        if self.ema is not None:
            if report is not None and any(name.startswith(AVERAGE) for name in report.loaded):
                self.ema.load_state_dict(dict(self.ema.ema_weights))
            else:
                self.ema.copy_raw_weights()
        return report

    def frozen(self) -> dict[str, Tensor | WeightSum]:
        """Returns the frozen raw weights by internal name; of quantized weights, checksums of the original values."""
        taken = {name: layer.source_checksum for name, layer in self.model.quantized_layers.items()}
        parameters = native_parameters(self.model.network).items()
        frozen = {name: parameter.detach() for name, parameter in parameters if not parameter.requires_grad}
        return {name: taken.get(name) or tensor for name, tensor in frozen.items()}

    @cached_property
    def frozen_record(self) -> str:
        """Content of `frozen_weights.json`. It is computed once, since these weights do not change."""
        return describe_frozen_weights(self.frozen(), source=self.source)

    @property
    def source(self) -> str:
        """Origin of the initial weights as text: their config field and path, or the seed of random weights."""
        start = self.config.initial_weights()
        if start is None:
            return f"random weights from trainer.seed = {self.config.trainer.seed}"
        return f"{start.field} = {start.path}"
