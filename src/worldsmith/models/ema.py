"""Exponential moving average of a network's parameters: by a power function, or with a decay that grows to a limit."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

from worldsmith.config import Configurable, wrong
from worldsmith.config.declare.ranges import NotNegative, Range
from worldsmith.models.local_part import local_part
from worldsmith.models.parameter_names import native_parameters

if TYPE_CHECKING:
    from torch import Tensor, nn

# The exponent falls to -1, where the average no longer moves, at this rate; beyond it the average would diverge.
RATE_LIMIT = math.sqrt(2) / 3
LIMIT_REASON = "from sqrt(2)/3 on the average would stand still or diverge; 0.1 is usual"


class PowerEMA(Configurable):
    """A float32 copy of the parameters that averages the live ones: ema ← β·ema + (1-β)·w, β = (1 - 1/(i+1))^(γ+1).

    The weight of step t in the average grows like t^γ, so the averaging window is a fixed share of the run so far. With
    `max_decay` β is min(max_decay, (1+n) / (10+n)) instead, n = i+1, as in LitEma of latent diffusion and in SAT: the
    weights that the run started from are in the average.

    - Starts as a copy of the live parameters and stays one until the first `update`, whatever `iteration_shift` is: an
      average of values from before a warm start is never blended in. After `load_state_dict` it continues the average
      that was loaded.
    - Frozen parameters are in the copy and in the state dict, where they cost memory and nothing per step. With
      `trainable_only` they are in neither: whoever reads the average takes the live weight for a name that it lacks.
    - Names are the native ones, whatever the network is wrapped in; with LoRA they include the adapters.
    - Works on sharded parameters (DTensor), shard by shard.
    """

    class Config(Configurable.Config):
        enabled: bool = True
        """Whether the average is kept (one more float32 copy of the parameters)."""
        rate: Annotated[float, Range(gt=0, lt=RATE_LIMIT, why=LIMIT_REASON)] = 0.1
        """Width of the averaging window relative to the length of the run; must be below sqrt(2)/3 = 0.4714."""
        iteration_shift: NotNegative = 0
        """Steps added to the step count before the decay is computed; positive starts with a slow average."""
        max_decay: Annotated[float, Range(gt=0, lt=1)] | None = None
        """Share of itself that the average keeps at most; 0.9999 in SAT. None: what it keeps follows from `rate`."""
        trainable_only: bool = False
        """Whether the average leaves out what is frozen; saves a float32 copy of it in memory and in checkpoints."""

        def check(self) -> None:
            if self.max_decay is not None and self.rate != PowerEMA.Config().rate:
                raise wrong(self, "rate", "max_decay", why="one of them is the law", remedy="leave one of them out")

    def __init__(self, config: Config, *, network: nn.Module) -> None:
        """Which parameters are frozen is read here, once. ValueError: all are, with `trainable_only`."""
        config.check()
        if not config.enabled:
            raise ValueError("ema.enabled is false: there is no average to build")
        import torch

        self.config = config
        self.exponent = exponent(config.rate)
        self.live = {
            name: p for name, p in native_parameters(network).items() if p.requires_grad or not config.trainable_only
        }
        if not self.live:
            raise ValueError(
                "ema.trainable_only: no parameter of the network is trained, so there is nothing to average"
            )
        self.average = {
            name: torch.empty_like(p, dtype=torch.float32, requires_grad=False) for name, p in self.live.items()
        }
        self.started = False
        self.copy_live()

    def beta(self, iteration: int) -> float:
        """The share of the old average that the update after the 0-based `iteration` keeps."""
        step = iteration + self.config.iteration_shift
        if self.config.max_decay is not None:
            return min(self.config.max_decay, (step + 2) / (step + 11))
        return 0.0 if step < 1 else (1 - 1 / (step + 1)) ** (self.exponent + 1)

    def update(self, iteration: int) -> None:
        """Takes in the live parameters; call after the optimizer step, with the number of those before it."""
        import torch

        beta = self.beta(iteration)
        started, self.started = self.started or self.config.max_decay is not None, True
        if beta == 0.0 or not started:
            self.copy_live()
            return
        moving = [name for name, p in self.live.items() if p.requires_grad]
        if moving:
            with torch.no_grad():
                average = [local_part(self.average[name]) for name in moving]
                torch._foreach_lerp_(
                    average, [local_part(self.live[name].detach()).float() for name in moving], 1 - beta
                )

    def state_dict(self) -> dict[str, Tensor]:
        """The average itself (not a copy), under native names; with `trainable_only` the trained ones alone."""
        if not self.started:
            self.copy_live()
        return dict(self.average)

    def load_state_dict(self, state: Mapping[str, Tensor], *, started: bool = True) -> None:
        """Loads saved EMA weights; `started` states whether they were updated before. ValueError for other names."""
        require_same_names(state, self.average, "the saved average", "the network")
        copy_tensors(self.average, state)
        self.started = started

    def copy_live(self) -> None:
        """Makes the average equal to the live parameters."""
        copy_tensors(self.average, self.live)

    @contextlib.contextmanager
    def swapped(self, network: nn.Module) -> Iterator[None]:
        """Within the block `network` has the averaged weights; afterwards its own, bit for bit.

        Raises ValueError for a network with other parameters than the averaged one.
        """
        average, own = self.state_dict(), native_parameters(network)
        if self.config.trainable_only:  # frozen parameters keep their own values
            own = {name: p for name, p in own.items() if name in average or p.requires_grad}
        require_same_names(own, average, "the network", "the average")
        backup = {name: p.detach().clone() for name, p in own.items()}
        try:
            copy_tensors(own, average)
            yield
        finally:
            copy_tensors(own, backup)


def exponent(rate: float) -> float:
    """γ: the largest real part among the roots of t³ + 7t² + (16 - rate⁻²)·t + (12 - rate⁻²)."""
    import numpy as np

    width = rate**-2
    return float(np.roots([1.0, 7.0, 16.0 - width, 12.0 - width]).real.max())


def copy_tensors(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor]) -> None:
    import torch

    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(sources[name])


def require_same_names(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], who: str, whom: str) -> None:
    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected]
    if missing or unknown:
        raise ValueError(
            f"{who} and {whom} do not have the same parameters: "
            f"{len(missing)} missing from {who} {missing[:3]}, {len(unknown)} unknown to {whom} {unknown[:3]}"
        )
