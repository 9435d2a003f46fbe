"""`FirstGradients`: what is trained has a gradient that is finite and not zero, when it is first reached."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from worldsmith.config.errors import UserError
from worldsmith.distributed.world import World
from worldsmith.models.local_part import local_part
from worldsmith.models.parameter_names import native_parameters

if TYPE_CHECKING:
    from torch import nn


class FirstGradients:
    """Looks at each trained part of a network once, in the first step that reaches it."""

    def __init__(self, network: nn.Module, part_of: Callable[[str], str]) -> None:
        self.network, self.part_of = network, part_of
        self.unchecked = {part_of(name) for name, p in native_parameters(network).items() if p.requires_grad}

    def check(self, reached: Collection[str], world: World) -> None:
        """After the last backward pass of a step, on all ranks. `reached`: the parts that this rank's batches use.

        Raises UserError, on all ranks, for a part that some rank has reached and whose gradient is wrong as a whole.
        """
        if not self.unchecked:
            return
        import torch

        parts = sorted(self.unchecked)
        squares = dict.fromkeys(parts, torch.zeros((), dtype=torch.float64))
        for name, parameter in native_parameters(self.network).items():
            part, gradient = self.part_of(name), parameter.grad
            if gradient is not None and part in squares:
                squares[part] = squares[part] + local_part(gradient).double().square().sum().cpu()
        totals = world.sum(*(float(part in reached) for part in parts), *map(float, squares.values()))
        for part, uses, total in zip(parts, totals, totals[len(parts) :]):
            if not uses:
                continue
            self.unchecked.discard(part)
            if not 0 < total < float("inf"):
                found = "zero, so nothing of it would be trained" if total == 0 else "not finite"
                raise UserError(
                    f"the first gradient of the {part} part is {found}: check the weights that the run starts from "
                    "(checkpoint.load_path), or freeze that part"
                )
