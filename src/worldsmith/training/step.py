"""One optimizer step: the forward and backward passes of its batches, weighted as one mean."""

from __future__ import annotations

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
    from worldsmith.training.gradients.grad_clip import GradNorm
    from worldsmith.training.gradients.loss_scale import LossScaler


@dataclass(slots=True)
class Step:
    """What is known of a step; it is filled in as the step goes on. Sums are over all ranks."""

    index: int
    """0-based: how many steps were done before this one."""
    batches: list[Any]
    """What this rank's loader gave, one for each forward pass."""
    weight: float = math.nan
    """That of all batches; the step's loss is a sum over it. 0: there is nothing to learn from."""
    samples: int = 0
    tokens: int = 0
    loss: float = math.nan
    figures: dict[str, float] = field(default_factory=dict)
    """Further means of the step, by name."""
    gradient: GradNorm | None = None
    """Norm of the gradient before clipping."""
    learning_rates: list[float] = field(default_factory=list)
    """Of each parameter group, in this step."""
    loss_scale: float = 1.0
    """What the loss was multiplied by for the backward pass; the gradients are divided by it again."""
    overflowed: bool = False
    """Whether the gradients were too large for float16 at that scale."""
    skipped: bool = False
    """Whether nothing was updated, because the step was not finite or had no weight."""
    data_seconds: float = 0.0
    """Waiting for the loader."""
    seconds: float = 0.0
    """The whole step, waiting included."""


def read_batches(batches: Iterator[Any], index: int, grad_accum_iter: int) -> Step:
    """Fetches all batches of a step first, so that their weight is known before the first backward."""
    start = time.perf_counter()
    read = [next(batches) for _ in range(grad_accum_iter)]
    return Step(index=index, batches=read, data_seconds=time.perf_counter() - start)


def forward_backward(step: Step, task: Task, *, seed: int, scaler: LossScaler | None = None) -> None:
    """Adds the gradient of the step's mean loss to the parameters and fills in what is known after it.

    Gradients are summed over the batches and averaged over the ranks, so that each batch's sum is divided by the weight
    of the step and multiplied by the number of ranks that read data, and in the backward passes by the `scaler`'s
    scale. Nothing is read back from the device before the last backward pass.
    """
    world, model = task.world, task.model
    weights = [float(task.weigh(batch)) for batch in step.batches]
    (step.weight,) = world.data_sum(sum(weights))
    require_same_packs(world, map(task.identify, step.batches))
    if step.weight == 0:
        return
    if scaler is not None:
        step.loss_scale = scaler.scale
    every_pack = model.config.parallelism.reduce_every_pack
    sums = []
    for index, batch in enumerate(step.batches):
        reduce_gradients(model.network, last=index == len(step.batches) - 1, every_pack=every_pack)
        sums.append(backward(task, batch, world.data_size / step.weight * step.loss_scale, seed=seed))
    step.overflowed = scaler is not None and scaler.unscale()
    fill_in(step, task, sums, weights)


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


def fill_in(step: Step, task: Task, sums: Sequence[LossSum], weights: Sequence[float]) -> None:
    """Loss, figures and counts of a step."""
    found = means(task, sums, weights)
    step.samples, step.tokens = found.samples, found.tokens
    step.figures = dict(found.figures)
    step.loss = step.figures.pop("loss")


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
