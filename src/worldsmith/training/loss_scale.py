"""The scale of the loss in float16, in which small gradients vanish and large ones overflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from worldsmith.config import Configurable
from worldsmith.config.declare.ranges import Count, Range

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

NEVER = 2**31 - 1
STATE = {"scale": "loss_scale[scale]", "_growth_tracker": "loss_scale[steps]"}
"""What `torch.amp.GradScaler` keeps of its past, and its names in a checkpoint."""


class LossScaler(Configurable):
    """`torch.amp.GradScaler` over the trained parameters of a run.

    The loss of a step is multiplied by `scale`; `unscale` divides the gradients by it, before anyone looks at them. A
    gradient that is not finite, on any rank, is an overflow: the step is skipped and the scale is halved.
    """

    class Config(Configurable.Config):
        init_scale: Annotated[float, Range(gt=0, le=2.0**64)] = 65536.0
        """What the loss is multiplied by in the first step, with model.config.precision = "float16"."""
        growth_interval: Count | None = 2000
        """Steps in a row without an overflow that double the scale; one with an overflow halves it. None: it stays."""

    def __init__(self, config: Config, *, optimizer: Optimizer, enabled: bool) -> None:
        """Without `enabled` the scale is 1 and nothing is done."""
        import torch

        config.check()
        self.config, self.optimizer = config, optimizer
        parameter = optimizer.param_groups[0]["params"][0]
        self.scaler = torch.amp.GradScaler(
            parameter.device.type,
            init_scale=config.init_scale,
            growth_interval=config.growth_interval or NEVER,
            enabled=enabled,
        )
        self.scaler.scale(torch.ones((), device=parameter.device))  # from then on it has its scale
        self.scale = float(self.scaler.get_scale())
        """That of the next step."""

    def unscale(self) -> bool:
        """Divides the gradients by the scale and chooses that of the next step; whether one overflowed, on any rank."""
        if not self.scaler.is_enabled():
            return False
        self.scaler.unscale_(self.optimizer)
        self.scaler.update()
        before, after = self.scale, float(self.scaler.get_scale())
        if self.config.growth_interval is None:
            self.scaler.update(before)
        else:
            self.scale = after
        return after < before

    def state_dict(self) -> dict[str, Tensor]:
        """What the next step depends on; empty where the config alone says it."""
        import torch

        state: dict[str, Any] = self.scaler.state_dict() if self.config.growth_interval else {}
        return {ours: torch.tensor(state[key], dtype=torch.float64) for key, ours in STATE.items() if key in state}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continues with what `state_dict` gave; what is missing stays."""
        own = self.scaler.state_dict()
        found = {key: type(own[key])(state[ours]) for key, ours in STATE.items() if key in own and ours in state}
        if found:
            self.scaler.load_state_dict({**own, **found})
            self.scale = float(self.scaler.get_scale())
