"""One training step: forward and backward passes over its batches, weighted as one mean, and when it is skipped."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from worldsmith.checkpoint.run.rng_state import seeded_rng
from worldsmith.distributed.context_parallel import require_same_packs
from worldsmith.distributed.fsdp import reduce_gradients
from worldsmith.objectives.noise_schedule import NETWORK_STREAM, random_stream

if TYPE_CHECKING:
    from torch import Tensor, nn

    from worldsmith.objectives.objective import BatchLoss
    from worldsmith.tasks.batch_reader import BatchReader
    from worldsmith.tasks.task import Task
    from worldsmith.training.optimizer import LossScaler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Batches of a training step. `read_batches` fetches them before the first forward pass."""

    index: int
    """0-based index of the step in the run, skipped steps included."""
    batches: list[Any]
    """Batches of this rank's loader, one per forward pass (gradient accumulation)."""
    data_seconds: float = 0.0
    """Time spent waiting for the loader, in seconds."""
    reader: BatchReader | None = None
    """Source of the prepared inputs; None: `Task.loss` prepares them."""
    loader_state: Mapping[str, Any] | None = None
    """State of the data loader after these batches; None: that of the loader."""
    weight: float | None = None
    """Sum of `Task.weigh` over all batches of all ranks; None: not known yet."""


@dataclass(frozen=True, slots=True)
class GradNorm:
    """Global L2 norm of the gradients before clipping, and whether the gradients are finite."""

    norm: float
    finite: bool
    """Whether the gradients can be used. Equal on all ranks, like the norm."""
    zeroed: int = 0
    """Number of non-finite entries that were set to zero on this rank."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a training step.

    `forward_backward` returns it; `Trainer.training_step` sets the fields of the optimizer step. Weight, loss, metrics
    and counts are totals or means over all ranks.
    """

    inputs: StepInputs
    weight: float
    """Sum of `Task.weigh` over all batches of the step: the denominator of the loss. 0: no sample to train on."""
    loss: float = math.nan
    metrics: dict[str, float] = field(default_factory=dict)
    """Other mean metrics of the step, by name."""
    samples: int = 0
    tokens: int = 0
    loss_scale: float = 1.0
    """Factor on the loss in the backward passes (float16); the gradients are divided by it afterwards."""
    overflowed: bool = False
    """Whether a gradient was inf or NaN in float16 with this `loss_scale`."""
    known_norm: tuple[Tensor, float] | None = None
    """Global L2 norm of the gradients as (tensor on the device, float); None if a callback may have changed them."""
    gradient: GradNorm | None = None
    """Gradient norm before clipping; None before it is computed."""
    learning_rates: list[float] = field(default_factory=list)
    """Learning rate of each parameter group in this step; empty until the optimizer has stepped."""
    sums: Mapping[str, float] = field(default_factory=dict)
    """Sums over all ranks of `Task.step_counts` and of `Callback.step_counts`, by name."""
    skipped: bool = False
    """Whether the step updated no weights, because loss or gradients were not finite or `weight` was 0."""
    seconds: float = 0.0
    """Duration of the step in seconds, including `data_seconds`."""


class StepGuard:
    """Decides whether a step is skipped, counts skipped steps, and raises after too many in a row.

    - If the loss is NaN or infinite, the step is skipped. So is a step whose gradients overflow float16.
    - If the gradient norm is not finite, or all entries of the gradient are zero after `GradClip.Config.force_finite`
      set the non-finite ones to zero, the step is skipped.

    A skipped step changes no weight, optimizer state, learning rate or EMA weight.

    Attributes:
        max_consecutive: Max number of skipped steps in a row; one more raises FloatingPointError.
        skipped: Number of skipped steps of the run.
        consecutive: Number of skipped steps since the last one that was not skipped.
    """

    def __init__(self, *, max_consecutive: int = 100) -> None:
        if max_consecutive < 0:
            raise ValueError(f"max_consecutive must not be negative, found {max_consecutive}")
        self.max_consecutive = max_consecutive
        self.skipped = 0
        self.consecutive = 0

    def must_skip(self, step: int, loss: float, gradient: GradNorm, *, weight: float = 1.0, cause: str = "") -> bool:
        """Returns whether the optimizer, scheduler and EMA must not step, and counts a skipped step.

        Args:
            step: Number of the step, from 1.
            loss: Mean loss over all ranks.
            gradient: Norm of the gradient.
            weight: Weight of the step; 0 if no sample contributes to the loss.
            cause: Reason to skip the step independent of its loss; "": none.

        Raises:
            FloatingPointError: If more than `max_consecutive` steps in a row are skipped.
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
            cause = "its batches contain no sample to train on"
        elif gradient.zeroed:
            cause += f" after {gradient.zeroed} non-finite entries were set to zero"
        if self.consecutive > self.max_consecutive:
            raise FloatingPointError(
                f"step {step}: {cause}: {self.consecutive} unusable steps in a row, at most "
                f"{self.max_consecutive} are allowed. Lower optimizer.lr, inspect the last samples or use float32"
            )
        logger.warning("Skipping step %d: %s (%d skipped so far)", step, cause, self.skipped)
        return True

    def state_dict(self) -> dict[str, int]:
        return {"skipped": self.skipped, "consecutive": self.consecutive}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.skipped = int(state["skipped"])
        self.consecutive = int(state["consecutive"])


def read_batches(batches: Iterator[Any], index: int, grad_accum_iter: int) -> StepInputs:
    """Fetches all batches of step `index` from the loader.

    They are fetched together because the weight of the step must be known before its first backward pass.

    Args:
        batches: Iterator over the batches of this rank.
        index: 0-based index of the step.
        grad_accum_iter: Number of batches per step and rank.
    """
    from worldsmith.tasks.batch_reader import BatchReader

    start = time.perf_counter()
    read = [next(batches) for _ in range(grad_accum_iter)]
    seconds = time.perf_counter() - start
    reader = batches if isinstance(batches, BatchReader) else None
    return StepInputs(index, read, seconds, reader, None if reader is None else reader.loader_state)


def forward_backward(
    inputs: StepInputs,
    task: Task,
    *,
    seed: int,
    scaler: LossScaler | None = None,
    parameters: Sequence[nn.Parameter] | None = None,
    count: Callable[[], Mapping[str, float]] = dict,
) -> StepResult:
    """Accumulates the gradient of the step's mean loss in the parameters and returns loss and metrics.

    The loss is sum(`BatchLoss.sum`) / weight over the batches of all ranks. FSDP averages gradients over the ranks, so
    each batch's sum is multiplied by the number of data-parallel ranks and divided by the weight. Collective: all ranks
    must call it. Loss values and gradient norm are copied to the host once, after the last backward pass. If the weight
    is 0, no pass runs.

    Args:
        inputs: Batches of this rank.
        task: Computes the loss of a batch and its weight.
        seed: Seed of the random values in the loss, such as noise.
        scaler: Loss scaler for float16; None: no loss scaling.
        parameters: Trained parameters, whose gradient norm is measured; None: it is not measured.
        count: Returns values of this rank, with the same names on all ranks; called after the last backward pass. Their
            sums over all ranks are in `StepResult.sums`, with those of `Task.step_counts`.
    """
    world, model, batches = task.world, task.model, inputs.batches
    weights = [float(task.weigh(batch)) for batch in batches]
    weight = world.data_sum(sum(weights))[0] if inputs.weight is None else inputs.weight
    require_same_packs(world, map(task.identify, batches))
    if weight == 0:
        return StepResult(inputs, weight)
    scale = 1.0 if scaler is None else scaler.scale
    every_pack = model.config.parallelism.reduce_every_pack
    losses = []
    for index, batch in enumerate(batches):
        reduce_gradients(model.network, last=index == len(batches) - 1, every_pack=every_pack)
        factor = world.data_size / weight * scale
        losses.append(forward_backward_batch(task, batch, factor, seed=seed, reader=inputs.reader))
    overflowed = scaler is not None and scaler.unscale()
    norm = None if parameters is None else global_norm([p.grad for p in parameters if p.grad is not None])
    means = reduce_metrics(task, losses, weights, norm, counts={**task.step_counts(batches), **count()})
    loss = means.metrics.pop("loss")
    return StepResult(
        inputs,
        weight,
        loss,
        means.metrics,
        means.samples,
        means.tokens,
        loss_scale=scale,
        overflowed=overflowed,
        known_norm=None if norm is None else (norm, means.norm),
        sums=means.sums,
    )


def global_norm(gradients: list[Tensor]) -> Tensor:
    """Returns the L2 norm over all gradients as a 0-d tensor. Collective if they are sharded (DTensor)."""
    from torch.distributed.tensor import DTensor

    total = torch.nn.utils.get_total_norm(gradients)
    return total.full_tensor() if isinstance(total, DTensor) else total


def forward_backward_batch(
    task: Task, batch: Any, loss_factor: float, *, seed: int, reader: BatchReader | None = None
) -> BatchLoss:
    """Runs the forward and backward pass of one batch and returns its detached loss.

    It is a separate function so that no local variable keeps the autograd graph alive in the next forward pass.

    Args:
        task: Computes the loss of a batch.
        batch: Batch of this rank.
        loss_factor: Factor on the summed loss in the backward pass.
        seed: Seed of the random values in the loss.
        reader: Source of the prepared inputs; None: `task.loss` prepares them.
    """
    with seeded_rng(network_seed(task, batch, seed)):
        # No variable holds the prepared inputs, so what autograd does not need is freed before the backward pass.
        loss = task.loss(batch, seed=seed, **prepared_inputs(reader, batch))
        (loss.sum * loss_factor).backward()  # type: ignore[no-untyped-call]
    metrics = {name: (total.detach(), count) for name, (total, count) in loss.metrics.items()}
    return replace(loss, sum=loss.sum.detach(), metrics=metrics)


def prepared_inputs(reader: BatchReader | None, batch: Any) -> dict[str, Any]:
    """Returns the keyword argument of `Task.loss` with the prepared inputs of a batch; {} if there are none."""
    inputs = None if reader is None else reader.inputs_of(batch)
    return {} if inputs is None else {"inputs": inputs}


def network_seed(task: Task, batch: Any, seed: int) -> int:
    """Returns the seed of the network's own random values (dropout) for a batch on this rank.

    It is derived from the run's seed and the position of the batch's first sample, so a resume, another number of
    ranks or gradient accumulation changes no dropout mask. The ranks of a context-parallel group have different seeds.
    """
    position = task.name_samples(batch)[0][1]
    seeds = random_stream(seed, position, NETWORK_STREAM).integers(2**63, size=task.world.context_parallel)
    return int(seeds[task.world.rank % task.world.context_parallel])


@dataclass(frozen=True, slots=True)
class MeanMetrics:
    """Mean loss and metrics over several batches of all ranks, with the numbers of samples and tokens in them."""

    metrics: dict[str, float]
    """"loss" and the metrics of the task, by name; NaN if no batch was counted."""
    samples: int
    tokens: int
    norm: float = math.nan
    """Value of the argument `norm` of `reduce_metrics`; NaN without it."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums over all ranks of the argument `counts` of `reduce_metrics`."""


def reduce_metrics(
    task: Task,
    losses: Sequence[BatchLoss],
    weights: Sequence[float],
    norm: Tensor | None = None,
    *,
    counts: Mapping[str, float] | None = None,
) -> MeanMetrics:
    """Computes the mean loss and metrics over the batches of all ranks.

    Collective: all ranks must call it. A metric `name[key]` for which no rank counted anything is omitted.

    Args:
        task: Provides the ranks to reduce over (`task.world`).
        losses: Detached losses of this rank's batches, all with the same metric names.
        weights: Weight of each batch: "loss" is Σ weight · loss / Σ weight, unless the task's metrics have "loss".
        norm: Scalar to copy to the host together with the losses; it is not reduced.
        counts: Further values to sum over all ranks, with the same names on all ranks.
    """
    if not losses:
        return MeanMetrics({"loss": math.nan}, 0, 0)
    batches = [{"loss": (loss.sum, weight), **loss.metrics} for loss, weight in zip(losses, weights, strict=True)]
    names = list(batches[0])
    # One stacked tensor, so that all values are copied to the host at once.
    scalars = [batch[name][0].double() for batch in batches for name in names]
    *values, copied = torch.stack([*scalars, scalars[0] if norm is None else norm.to(scalars[0])]).tolist()
    sums = [sum(values[index :: len(names)]) for index in range(len(names))]
    numbers = [sum(batch[name][1] for batch in batches) for name in names]
    local = sum(loss.samples for loss in losses), sum(loss.tokens for loss in losses), *sums, *numbers
    totals = task.world.sum(*local, *(counts or {}).values())
    further = dict(zip(counts or {}, totals[len(local) :]))
    # The ranks of a context-parallel group have the same batches, so each group counts once.
    samples, tokens, *totals = (total / task.world.context_parallel for total in totals[: len(local)])
    reduced = zip(names, totals[: len(names)], totals[len(names) :])
    means = {name: total / count if count else math.nan for name, total, count in reduced if count or "[" not in name}
    return MeanMetrics(means, int(samples), int(tokens), copied, further)
