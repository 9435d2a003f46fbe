"""The loss on validation data, and the best validation of a run so far.

A validation computes no gradients and uses fixed noise, with the raw and the EMA weights. It reads its data from the
start each time, generates its noise from the seed of that data, and changes no state of the training: the same weights
give the same metrics at any time.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from torch import nn

from worldsmith.checkpoint.run.rng_state import untouched_rng
from worldsmith.config.errors import UserError
from worldsmith.data.stream.dataset_record import VALIDATION, changed_samples
from worldsmith.data.stream.sample_maker import StreamDataset
from worldsmith.distributed.context_parallel import require_same_packs
from worldsmith.models.ema import PowerEMA
from worldsmith.objectives.objective import BatchLoss
from worldsmith.tasks.task import Task
from worldsmith.training.step import MeanMetrics, reduce_metrics


@dataclass(frozen=True, slots=True)
class Validation:
    """Mean metrics, size and duration (in seconds) of one validation over all ranks."""

    metrics: dict[str, float]
    """`val/loss` and the other metrics of the task, and those of the EMA weights with the prefix `val_ema/`."""
    samples: int
    tokens: int
    seconds: float

    def __str__(self) -> str:
        averaged = f", EMA weights {self.metrics['val_ema/loss']:.4f}" if "val_ema/loss" in self.metrics else ""
        return f"loss {self.metrics['val/loss']:.4f}{averaged} ({self.samples} samples, {self.seconds:.1f} s)"


@dataclass(frozen=True, slots=True)
class ValidationBatch:
    """A batch that a rank runs through the network in a validation."""

    batch: Any
    is_own: bool
    """Whether the batch counts; false if it only lets the rank take part in the all-gather of sharded weights."""


class Validator:
    """Measures the loss on the validation data. All ranks must create it and call its methods together."""

    def __init__(self, task: Task, *, max_packs: int | None) -> None:
        """Builds the loader of the validation data. If the task has no run folder (dry run), it writes no files.

        Args:
            task: Task of the validation data.
            max_packs: Max number of packed batches on each rank; None: all samples.
        """
        self.task, self.max_packs = task, max_packs
        self.network, self.world, self.seed = task.model.network, task.world, task.data.seed
        self.loader = task.loader(dry=task.run_folder is None)

    def run(
        self,
        average: PowerEMA | None,
        *,
        is_stopped: Callable[[], bool] = bool,
        report_fraction: Callable[[float], object] = lambda fraction: None,
    ) -> Validation | None:
        """Validates the current weights and, if given, the EMA weights. Collective.

        Args:
            average: EMA weights; None: only the raw weights are validated.
            is_stopped: Returns whether this rank is asked to stop.
            report_fraction: Receives the approximate completed fraction.

        Returns:
            Metrics; None if a rank was asked to stop in the meantime.
        """
        import torch

        start, network = time.perf_counter(), self.network
        metrics: dict[str, float] = {}
        with untouched_rng(), evaluating(network), torch.no_grad():
            rounds = 1 if average is None else 2
            found = self.measure(is_stopped, lambda fraction: report_fraction(fraction / rounds))
            metrics |= prefix_names("val", found)
            if found is not None and average is not None:
                with average.apply_to(network):
                    found = self.measure(is_stopped, lambda fraction: report_fraction((1 + fraction) / rounds))
                metrics |= prefix_names("val_ema", found)
        self.task.in_first_step = False
        if found is None:
            return None
        return Validation(metrics, found.samples, found.tokens, time.perf_counter() - start)

    def remarks(self, training: StreamDataset, run_folder: Path) -> Iterator[str]:
        """Yields warnings about validation samples that are in the training data, and about changed validation data.

        Args:
            training: Dataset of the training data.
            run_folder: Run folder with the record of the validation data at the last start.
        """
        both = self.loader.dataset.count_overlap(training)
        if both:
            yield (
                f"validation: {both} of {self.loader.dataset.num_samples} samples of {self.loader.dataset.name} are "
                "also in the training data; their loss does not show how well the model generalizes"
            )
        changes = changed_samples(run_folder / VALIDATION, self.loader.dataset)
        if changes:
            yield "\n".join(
                ["the validation data have changed, so losses before and after refer to different samples:", *changes]
            )

    def measure(self, is_stopped: Callable[[], bool], report_fraction: Callable[[float], object]) -> MeanMetrics | None:
        """Returns mean metrics over the validation data with the current weights; None if a rank was asked to stop.

        `report_fraction` receives the approximate completed fraction, 0 to 1, after each batch. Collective.
        """
        sums, weights = [], []
        samples = 0
        for found in self.batches(is_stopped):
            if found is None:
                return None
            require_same_packs(self.world, [self.task.identify(found.batch)])
            loss = self.task.loss(found.batch, seed=self.seed)
            sums.append(loss if found.is_own else zero_loss_like(loss))
            weights.append(float(self.task.weigh(found.batch)) if found.is_own else 0.0)
            samples += self.task.size(found.batch)[0] if found.is_own else 0
            by_samples = samples * self.world.data_size / max(1, self.loader.dataset.num_samples)
            report_fraction(min(1.0, max(by_samples, len(sums) / self.max_packs if self.max_packs else 0.0)))
        return reduce_metrics(self.task, sums, weights)

    def batches(self, is_stopped: Callable[[], bool]) -> Iterator[ValidationBatch | None]:
        """Yields the batches of this rank, the same number on each rank. Collective.

        All ranks must run the same number of forward passes, since they all-gather sharded weights together. A rank
        whose data has ended therefore repeats its last batch (or one of another rank), with `is_own` False. If
        `is_stopped` returns True on any rank, None is yielded and the iteration ends.
        """
        batch: Any = None
        with contextlib.closing(self.loader.first_pass()) as stream:
            own = islice(stream, self.max_packs)
            while True:
                found = next(own, None)
                batch = batch if found is None else found
                given, idle, stopping = self.world.sum(found is not None, batch is None, is_stopped())
                if stopping:
                    yield None
                if stopping or not given:
                    return
                if idle:
                    borrowed = next(other for other in self.world.gather(found) if other is not None)
                    batch = borrowed if batch is None else batch
                yield ValidationBatch(batch, is_own=found is not None)


@contextlib.contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Context manager that sets a network to evaluation mode and restores the mode of each module afterwards."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def zero_loss_like(loss: BatchLoss) -> BatchLoss:
    """Returns a loss of zero samples with the metric names of `loss`."""
    nothing = loss.sum.new_zeros(())
    return replace(loss, sum=nothing, samples=0, tokens=0, metrics={name: (nothing, 0.0) for name in loss.metrics})


def prefix_names(prefix: str, found: MeanMetrics | None) -> dict[str, float]:
    return {} if found is None else {f"{prefix}/{name}": value for name, value in found.metrics.items()}


class BestSoFar:
    """The best value of one metric so far, and the number of validations since then.

    Each validation counts once, so that a resumed run decides like one that never stopped. A value that is not finite
    is never the best. `step` is 0 until there is a best value.

    Args:
        metric: Name of a validation metric.
        mode: "min" or "max".
    """

    def __init__(self, metric: str, mode: Literal["min", "max"]) -> None:
        self.metric, self.mode = metric, mode
        self.forget()

    def forget(self) -> None:
        self.value, self.step = math.nan, 0
        self.counted_step = 0
        """Completed steps at the last validation that was counted."""
        self.without = 0
        """Number of validations since the best one."""

    def record(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Records a validation.

        Args:
            step: Number of completed steps.
            metrics: Metrics of the validation.

        Returns:
            Whether the weights after `step` steps are the best so far; False for a validation that was counted before.

        Raises:
            UserError: If the validation has no such metric.
        """
        if self.metric not in metrics:
            there = ", ".join(metrics)
            raise UserError(f"checkpoint.keep_best: '{self.metric}' is not a validation metric; available: {there}")
        if step <= self.counted_step:
            return False
        value, self.counted_step = metrics[self.metric], step
        better = self.step == 0 or (value < self.value if self.mode == "min" else value > self.value)
        if not (better and math.isfinite(value)):
            self.without += 1
            return False
        self.value, self.step, self.without = value, step, 0
        return True

    def state_dict(self) -> dict[str, float]:
        """Returns the state for a checkpoint, by names that contain `metric` and `mode`.

        A run with another metric therefore ignores it.
        """
        kept = {"value": self.value, "step": self.step, "judged": self.counted_step, "without": self.without}
        return {f"best[{self.metric},{self.mode}].{name}": float(value) for name, value in kept.items()}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Loads the values of `state_dict`; missing names are left unchanged."""
        value, step, judged, without = (state.get(name, now) for name, now in self.state_dict().items())
        self.value, self.step, self.counted_step, self.without = value, int(step), int(judged), int(without)
