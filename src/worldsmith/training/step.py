"""One optimizer step: the forward and backward passes of its batches, weighted as one mean, and when it is skipped."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.run.rng_state import seeded_rng
from worldsmith.distributed.context_parallel import require_same_packs
from worldsmith.distributed.fsdp import reduce_gradients
from worldsmith.objectives.noise_schedule import NETWORK_STREAM, random_stream

if TYPE_CHECKING:
    from worldsmith.objectives.objective import LossSum
    from worldsmith.tasks.task import Task
    from worldsmith.training.optimizer import LossScaler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a step is computed from. `read_batches` reads it before the first forward pass."""

    index: int
    """Number of steps before this one."""
    batches: list[Any]
    """Batches of this rank's loader, one for each forward pass."""
    data_seconds: float = 0.0
    """Seconds spent waiting for the loader."""


@dataclass(frozen=True, slots=True)
class GradNorm:
    """Global L2 norm of the gradients before clipping."""

    norm: float
    finite: bool
    """Whether the gradients can be used. Equal on all ranks, like the norm."""
    zeroed: int = 0
    """Number of non-finite entries that were set to zero on this rank."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a step. `forward_backward` returns it, and `Trainer.training_step` adds what is known later.

    Sums and means are over all ranks.
    """

    inputs: StepInputs
    weight: float
    """Weight of all batches, by which the summed loss is divided. 0: there is nothing to learn from."""
    loss: float = math.nan
    figures: dict[str, float] = field(default_factory=dict)
    """Further means of the step, by name."""
    samples: int = 0
    tokens: int = 0
    loss_scale: float = 1.0
    """Factor of the loss in the backward pass; the gradients are divided by it again."""
    overflowed: bool = False
    """Whether the gradients were too large for float16 at that scale."""
    gradient: GradNorm | None = None
    """Norm of the gradient before clipping; None until it is measured."""
    learning_rates: list[float] = field(default_factory=list)
    """Learning rate of each parameter group in this step; empty until the optimizer has stepped."""
    skipped: bool = False
    """Whether nothing was updated, because the step was not finite or had no weight."""
    seconds: float = 0.0
    """Duration of the complete step, waiting included."""


class StepGuard:
    """Decides for each step whether it is skipped, counts the skipped steps, and stops after too many in a row.

    - If the loss is NaN or infinite, the step is skipped. So is a step whose gradients overflow float16.
    - If the gradient norm is not finite, or no entry of the gradient is left after the non-finite ones were set to zero
      (`GradClip.Config.force_finite`), the step is skipped.

    A skipped step changes no weight, optimizer state, learning rate or EMA weight.

    Attributes:
        max_consecutive: max number of skipped steps in a row; one more raises FloatingPointError.
    """

    def __init__(self, *, max_consecutive: int = 100) -> None:
        if max_consecutive < 0:
            raise ValueError(f"max_consecutive must not be negative, found {max_consecutive}")
        self.max_consecutive = max_consecutive
        self.skipped = 0
        self.consecutive = 0

    def must_skip(self, step: int, loss: float, gradient: GradNorm, *, weight: float = 1.0, cause: str = "") -> bool:
        """Whether the optimizer, scheduler and EMA must not step.

        Args:
            step: number of the step, from 1.
            loss: mean loss over all ranks.
            gradient: norm of the gradient.
            weight: weight of the step's samples; 0 if no sample has anything to learn from, so that there is no loss.
            cause: reason for which the step is skipped whatever its loss is.

        Raises:
            FloatingPointError: more than `max_consecutive` steps in a row are skipped.
        """
        if weight and math.isfinite(loss) and gradient.finite and not cause:
            self.consecutive = 0
            if gradient.zeroed:
                logger.warning("step %d: %d non-finite gradient entries were set to zero", step, gradient.zeroed)
            return False
        self.skipped += 1
        self.consecutive += 1
        found = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {gradient.norm}"
        cause = cause or found
        if not weight:
            cause = "there is nothing to learn in its batches"
        elif gradient.zeroed:
            cause += f" after {gradient.zeroed} non-finite entries were set to zero"
        if self.consecutive > self.max_consecutive:
            raise FloatingPointError(
                f"step {step}: {cause}; that is {self.consecutive} unusable steps in a row, and "
                f"{self.max_consecutive} are borne; lower optimizer.lr, look at the last samples, or train in float32"
            )
        logger.warning("step %d is skipped: %s (%d skipped so far)", step, cause, self.skipped)
        return True

    def state_dict(self) -> dict[str, int]:
        return {"skipped": self.skipped, "consecutive": self.consecutive}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.skipped = int(state["skipped"])
        self.consecutive = int(state["consecutive"])


def read_batches(batches: Iterator[Any], index: int, grad_accum_iter: int) -> StepInputs:
    """Fetches all batches of a step first, so that their weight is known before the first backward."""
    start = time.perf_counter()
    read = [next(batches) for _ in range(grad_accum_iter)]
    return StepInputs(index, read, data_seconds=time.perf_counter() - start)


def forward_backward(inputs: StepInputs, task: Task, *, seed: int, scaler: LossScaler | None = None) -> StepResult:
    """Adds the gradient of the step's mean loss to the parameters.

    Gradients are summed over the batches and averaged over the ranks, so that each batch's sum is divided by the weight
    of the step and multiplied by the number of ranks that read data, and in the backward passes by the `scaler`'s
    scale. Nothing is read back from the device before the last backward pass.
    """
    world, model, batches = task.world, task.model, inputs.batches
    weights = [float(task.weigh(batch)) for batch in batches]
    (weight,) = world.data_sum(sum(weights))
    require_same_packs(world, map(task.identify, batches))
    if weight == 0:
        return StepResult(inputs, weight)
    scale = 1.0 if scaler is None else scaler.scale
    every_pack = model.config.parallelism.reduce_every_pack
    sums = []
    for index, batch in enumerate(batches):
        reduce_gradients(model.network, last=index == len(batches) - 1, every_pack=every_pack)
        sums.append(backward(task, batch, world.data_size / weight * scale, seed=seed))
    overflowed = scaler is not None and scaler.unscale()
    found = means(task, sums, weights)
    loss = found.figures.pop("loss")
    return StepResult(
        inputs, weight, loss, found.figures, found.samples, found.tokens, loss_scale=scale, overflowed=overflowed
    )


def backward(task: Task, batch: Any, factor: float, *, seed: int) -> LossSum:
    """The batch's loss after its backward pass; nothing of it holds on to the graph."""
    with seeded_rng(network_seed(task, batch, seed)):
        loss = task.loss(batch, seed=seed)
        (loss.sum * factor).backward()  # type: ignore[no-untyped-call]
    figures = {name: (total.detach(), count) for name, (total, count) in loss.figures.items()}
    return replace(loss, sum=loss.sum.detach(), figures=figures)


def network_seed(task: Task, batch: Any, seed: int) -> int:
    """Seed of the random numbers that the network draws itself (dropout) for a batch on this rank.

    It follows from the run's seed and the position of the batch's first sample, so that a resume, another number of
    ranks and accumulation change no mask. The ranks of a context-parallel group draw different numbers.
    """
    position = task.name_samples(batch)[0][1]
    seeds = random_stream(seed, position, NETWORK_STREAM).integers(2**63, size=task.world.context_parallel)
    return int(seeds[task.world.rank % task.world.context_parallel])


@dataclass(frozen=True, slots=True)
class Means:
    """What the losses of several batches come to, over all ranks."""

    figures: dict[str, float]
    """"loss" and the further means that the task gives; NaN where there was nothing to count."""
    samples: int
    tokens: int


def means(task: Task, sums: Sequence[LossSum], weights: Sequence[float]) -> Means:
    """The means over batches with these weights on all ranks, each of which has as many."""
    import torch

    if not sums:
        return Means({"loss": math.nan}, 0, 0)
    figures = [{"loss": (loss.sum, weight), **loss.figures} for loss, weight in zip(sums, weights, strict=True)]
    names = list(figures[0])
    values = torch.stack([figure[name][0].double() for figure in figures for name in names]).tolist()
    own = [sum(values[place :: len(names)]) for place in range(len(names))]
    own += [sum(figure[name][1] for figure in figures) for name in names]
    counts = sum(loss.samples for loss in sums), sum(loss.tokens for loss in sums)
    samples, tokens, *totals = task.world.data_sum(*counts, *own)
    shares = zip(names, totals[: len(names)], totals[len(names) :])
    found = {name: total / count if count else math.nan for name, total, count in shares if count or "[" not in name}
    return Means(found, int(samples), int(tokens))
