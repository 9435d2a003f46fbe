"""The loss on data that are not trained on: without gradients, on fixed noise, with the live and the averaged weights.

A validation reads its stream from the start each time, draws its noise from the seed of that stream, and leaves nothing
behind: the same weights give the same figures at any time, and the training goes on as if there had been none.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.run.rng_state import untouched_rng
from worldsmith.data.stream.dataset_record import VALIDATION, changed_samples
from worldsmith.distributed.context_parallel import require_same_packs
from worldsmith.training.step import Means, means

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from worldsmith.data.stream.maker import StreamDataset
    from worldsmith.models.ema import PowerEMA
    from worldsmith.objectives.objective import LossSum
    from worldsmith.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Validation:
    """What one validation found, over all ranks."""

    figures: dict[str, float]
    """`val/loss` and the further figures of the task; under `val_ema/` those of the averaged weights, if there are."""
    samples: int
    tokens: int
    seconds: float

    def __str__(self) -> str:
        averaged = f", averaged weights {self.figures['val_ema/loss']:.4f}" if "val_ema/loss" in self.figures else ""
        return f"loss {self.figures['val/loss']:.4f}{averaged} ({self.samples} samples, {self.seconds:.1f} s)"


class Validator:
    """Measures the network on the validation data. All ranks make it and call it together."""

    def __init__(self, task: Task, *, max_packs: int | None) -> None:
        """Builds the loader of the validation data; without a run folder one for a dry run.

        Args:
            task: the task of the validation data.
            max_packs: max number of packs on each rank; None: all samples.
        """
        self.task, self.max_packs = task, max_packs
        self.network, self.world, self.seed = task.model.network, task.world, task.data.seed
        self.loader = task.loader(dry=task.run_folder is None)

    def run(
        self,
        average: PowerEMA | None,
        *,
        asked: Callable[[], bool] = bool,
        tell: Callable[[float], object] = lambda share: None,
    ) -> Validation | None:
        """None when a rank is `asked` to stop meanwhile. `tell` is told which share is done, about."""
        import torch

        start, network = time.perf_counter(), self.network
        figures: dict[str, float] = {}
        with untouched_rng(), evaluating(network), torch.no_grad():
            passes = 1 if average is None else 2
            found = self.measure(asked, lambda share: tell(share / passes))
            figures |= under("val", found)
            if found is not None and average is not None:
                with average.swapped(network):
                    found = self.measure(asked, lambda share: tell((1 + share) / passes))
                figures |= under("val_ema", found)
        self.task.in_first_step = False
        if found is None:
            return None
        return Validation(figures, found.samples, found.tokens, time.perf_counter() - start)

    def remarks(self, training: StreamDataset, run_folder: Path) -> Iterator[str]:
        """What these data have in common with those of the training, and not with those validated on before."""
        both = self.task.overlap(self.loader.dataset, training)
        if both:
            yield (
                f"validation: {both} of {self.loader.dataset.num_samples} samples of {self.loader.dataset.name} are "
                "trained on, too; what their loss says does not hold for other data"
            )
        changes = changed_samples(run_folder / VALIDATION, self.loader.dataset)
        if changes:
            yield "\n".join(
                ["the validation data have changed, and losses before and after are of other samples:", *changes]
            )

    def measure(self, asked: Callable[[], bool], tell: Callable[[float], object]) -> Means | None:
        """The means over the stream with the weights as they are, weighted as those of a step."""
        sums, weights = [], []
        samples = 0
        for batch, is_own in self.batches(asked):
            if batch is None:
                return None
            require_same_packs(self.world, [self.task.identify(batch)])
            loss = self.task.loss(batch, seed=self.seed)
            sums.append(loss if is_own else nothing_of(loss))
            weights.append(float(self.task.weigh(batch)) if is_own else 0.0)
            samples += self.task.size(batch)[0] if is_own else 0
            by_samples = samples * self.world.data_size / max(1, self.loader.dataset.num_samples)
            tell(min(1.0, max(by_samples, len(sums) / self.max_packs if self.max_packs else 0.0)))
        return means(self.task, sums, weights)

    def batches(self, asked: Callable[[], bool]) -> Iterator[tuple[Any, bool]]:
        """The batches of this rank and whether they count, as many on each rank; (None, False) ends them early.

        A sharded network is gathered by all ranks together: one that has no batch left takes part with its last one, or
        with that of another, which counts nothing there.
        """
        batch: Any = None
        with contextlib.closing(self.loader.first_pass()) as stream:
            own = islice(stream, self.max_packs)
            while True:
                found = next(own, None)
                batch = batch if found is None else found
                given, idle, stopping = self.world.sum(found is not None, batch is None, asked())
                if stopping:
                    yield None, False
                if stopping or not given:
                    return
                if idle:
                    lent = next(other for other in self.world.gather(found) if other is not None)
                    batch = lent if batch is None else batch
                yield batch, found is not None


@contextlib.contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Within the block no part of the network drops out."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def nothing_of(loss: LossSum) -> LossSum:
    """The same figures of no samples."""
    nothing = loss.sum.new_zeros(())
    return replace(loss, sum=nothing, samples=0, tokens=0, figures={name: (nothing, 0.0) for name in loss.figures})


def under(prefix: str, found: Means | None) -> dict[str, float]:
    return {} if found is None else {f"{prefix}/{name}": value for name, value in found.figures.items()}
