"""EMA weights: an exponential moving average of a network's parameters."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

from worldsmith.config import Configurable, wrong
from worldsmith.config.declare.ranges import NotNegative, Range
from worldsmith.models.local_part import local_part
from worldsmith.models.parameter_names import native_parameters

if TYPE_CHECKING:
    from torch import Tensor, nn

# At this rate the exponent γ is -1, so the decay is always 1 and the EMA weights never change. Above it, the decay is
# larger than 1 and the EMA weights diverge.
MAX_RATE = math.sqrt(2) / 3


class PowerEMA(Configurable):
    """Keeps float32 EMA weights of a network: ema ← β·ema + (1-β)·w with the decay β = (1 - 1/(i+1))^(γ+1).

    The power-function decay weights step t by t^γ, so the width of the averaging window is a constant fraction
    (`rate`) of the steps so far. If `max_decay` is set, the decay is β = min(max_decay, (1+n) / (10+n)) with n = i+1
    instead, and the initial weights contribute to the average.

    - Initial state: a copy of the raw weights until the first `update`. Without `max_decay` the first update copies
      the raw weights too, for every `iteration_shift`, so values from before a warm start never enter the EMA.
    - Frozen parameters: stored in the EMA weights and in the state dict (memory, but no time per step). With
      `trainable_only` they are in neither; use the raw weight for a name that is missing.
    - Names: internal parameter names without the prefixes of wrappers such as FSDP; LoRA adapters are included.
    - Sharded parameters (DTensor) are updated shard by shard, without communication.

    Source:
        Power function: Karras et al. 2024, arXiv:2312.02696, section 3.1. `max_decay`: `LitEma` of latent-diffusion,
        also used by CogVideo SAT.
    """

    class Config(Configurable.Config):
        enabled: bool = True
        """Keep EMA weights (one more float32 copy of the parameters)."""
        rate: Annotated[float, Range(gt=0, lt=MAX_RATE, why="from sqrt(2)/3 on the EMA diverges; 0.1 is usual")] = 0.1
        """Width of the averaging window (standard deviation) as a fraction of the steps so far; below sqrt(2)/3."""
        iteration_shift: NotNegative = 0
        """Steps added to the step count when the decay is computed; a larger shift gives a larger initial decay."""
        max_decay: Annotated[float, Range(gt=0, lt=1)] | None = None
        """Maximum decay, such as 0.9999 in SAT; replaces `rate`. None: power-function decay."""
        trainable_only: bool = False
        """Keep EMA weights of trainable parameters only; saves memory and checkpoint size."""

        def check(self) -> None:
            if self.max_decay is not None and self.rate != PowerEMA.Config().rate:
                raise wrong(self, "rate", "max_decay", why="each selects another decay formula", remedy="omit one")

    def __init__(self, config: Config, *, network: nn.Module) -> None:
        """Copies the parameters of `network`. Later changes of `requires_grad` do not add or remove names.

        Raises:
            ValueError: If `config.enabled` is false, or `config.trainable_only` finds no trainable parameter.
        """
        config.check()
        if not config.enabled:
            raise ValueError("cannot build PowerEMA: ema.enabled is false. Set it to true, or do not build PowerEMA.")
        import torch

        self.config = config
        self.gamma = sigma_rel_to_gamma(config.rate)
        self.raw_weights = {
            name: p for name, p in native_parameters(network).items() if p.requires_grad or not config.trainable_only
        }
        if not self.raw_weights:
            raise ValueError(
                "ema.trainable_only needs trainable parameters, found none. Unfreeze some, or set ema.enabled = false."
            )
        self.ema_weights = {
            name: torch.empty_like(p, dtype=torch.float32, requires_grad=False) for name, p in self.raw_weights.items()
        }
        self.started = False
        """Whether the EMA weights are an average (after an update or a loaded state) and not a plain copy."""
        self.copy_raw_weights()

    def get_decay(self, iteration: int) -> float:
        """Returns the decay β (fraction of the old EMA weights that is kept) for `update(iteration)`."""
        step = iteration + self.config.iteration_shift
        if self.config.max_decay is not None:
            return min(self.config.max_decay, (step + 2) / (step + 11))
        return 0.0 if step < 1 else (1 - 1 / (step + 1)) ** (self.gamma + 1)

    def update(self, iteration: int) -> None:
        """Averages the current raw weights into the EMA weights. Call it after `optimizer.step()`.

        Args:
            iteration: 0-based index of the optimizer step that was just taken.
        """
        import torch

        decay = self.get_decay(iteration)
        is_first = not self.started and self.config.max_decay is None
        self.started = True
        if is_first or decay == 0.0:
            self.copy_raw_weights()
            return
        trainable = [name for name, p in self.raw_weights.items() if p.requires_grad]
        if trainable:
            with torch.no_grad():
                ema_shards = [local_part(self.ema_weights[name]) for name in trainable]
                raw_shards = [local_part(self.raw_weights[name].detach()).float() for name in trainable]
                torch._foreach_lerp_(ema_shards, raw_shards, 1 - decay)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the EMA weights (not copies) by internal parameter name.

        Before the first `update`, the raw weights are copied into the EMA weights first.
        """
        if not self.started:
            self.copy_raw_weights()
        return dict(self.ema_weights)

    def load_state_dict(self, state: Mapping[str, Tensor], *, started: bool = True) -> None:
        """Copies saved EMA weights into this object; later updates continue from them.

        Args:
            state: EMA weights by internal parameter name.
            started: Whether `update` had been called before the EMA weights were saved. False: the first update copies
                the raw weights, as in a new run.

        Raises:
            ValueError: If names are missing or unexpected.
        """
        require_same_names(state, self.ema_weights, "the EMA state", "the network")
        copy_tensors(self.ema_weights, state)
        self.started = started

    def copy_raw_weights(self) -> None:
        """Overwrites the EMA weights with the raw weights."""
        copy_tensors(self.ema_weights, self.raw_weights)

    @contextlib.contextmanager
    def apply_to(self, network: nn.Module) -> Iterator[None]:
        """Context manager: `network` has the EMA weights within the block and its raw weights, bit for bit, after it.

        Raises:
            ValueError: If the parameter names of `network` differ from those of the EMA weights.
        """
        ema_weights, parameters = self.state_dict(), native_parameters(network)
        if self.config.trainable_only:  # frozen parameters keep their own values
            parameters = {name: p for name, p in parameters.items() if name in ema_weights or p.requires_grad}
        require_same_names(parameters, ema_weights, "the network", "the EMA weights")
        backup = {name: p.detach().clone() for name, p in parameters.items()}
        try:
            copy_tensors(parameters, ema_weights)
            yield
        finally:
            copy_tensors(parameters, backup)


def sigma_rel_to_gamma(sigma_rel: float) -> float:
    """Computes the exponent γ of the power function whose averaging window has the relative width `sigma_rel`.

    Above about 0.300 no real γ has this width; the result is then the real part of the complex roots.

    Args:
        sigma_rel: Standard deviation of the averaging window, as a fraction of the training length.

    Returns:
        The largest real part among the roots of γ³ + 7γ² + (16 - σ⁻²)γ + (12 - σ⁻²).

    Source:
        Karras et al. 2024, arXiv:2312.02696, algorithm 2.
    """
    import numpy as np

    t = sigma_rel**-2
    return float(np.roots([1.0, 7.0, 16.0 - t, 12.0 - t]).real.max())


def copy_tensors(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor]) -> None:
    import torch

    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(sources[name])


def require_same_names(found: Collection[str], expected: Collection[str], found_in: str, expected_by: str) -> None:
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    if missing or unexpected:
        raise ValueError(
            f"parameter names of {found_in} do not match {expected_by}: {len(missing)} missing {missing[:3]}, "
            f"{len(unexpected)} unexpected {unexpected[:3]}. Use the same network settings and the same "
            "ema.trainable_only as for the EMA weights."
        )
