"""What a run costs on another number of GPUs, from a simulated step: the formulas of docs/scale.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2, sqrt
from typing import Any

from worldsmith.distributed.gpus import Gpu
from worldsmith.planning.estimate_memory import MemoryVerdict
from worldsmith.planning.estimate_time import (
    EFFICIENCIES,
    NOTHING,
    EstimateRange,
    StepSeconds,
    divide_by_rates,
    step_seconds,
)
from worldsmith.planning.work import StepWork, Traffic

HOURS_BETWEEN_FAILURES = 16384 * 54 * 24 / 419
"""Of one GPU: 419 unexpected interruptions of 16,384 GPUs in 54 days, "The Llama 3 Herd of Models" (2024), table 5."""
NEAR = 1.02
"""Times the best that count as good: less than what is known of seconds by far."""
RESTART = 600.0
"""Assumed: seconds from a failure to the first step, the reading of the checkpoint not counted."""


@dataclass(frozen=True)
class Layout:
    """`shard` counts shares of the data among which a copy of the weights is cut, as the recipes' degree does."""

    shard: int
    replicate: int = 1
    context: int = 1

    @property
    def ranks(self) -> int:
        return self.weights * self.replicate

    @property
    def weights(self) -> int:
        """Ranks among which one copy of the weights is cut."""
        return self.shard * self.context

    def __str__(self) -> str:
        parts = [f"{self.replicate} × " * (self.replicate > 1) + str(self.shard)]
        return parts[0] + f" × context {self.context}" * (self.context > 1)


@dataclass(frozen=True)
class Cost:
    """A step of a run in a layout."""

    layout: Layout
    work: StepWork
    peak: int
    step: StepSeconds

    @property
    def computing(self) -> EstimateRange:
        parts = ("matmuls", "attention", "memory")
        return sum((self.step.terms[name] for name in parts), NOTHING)

    @property
    def sending(self) -> EstimateRange:
        parts = ("inside a machine", "between machines")
        return sum((self.step.terms.get(name, NOTHING) for name in parts), NOTHING)

    @property
    def efficiency(self) -> float:
        """Share of the step in which there is computation, between all and nothing hidden."""
        return self.computing.middle / self.step.total.middle


def cost(entry: Mapping[str, Any], layout: Layout, gpu: Gpu, *, packs: int = 1) -> Cost:
    """`packs` on each share of the data, gradients reduced after each. The context must be that of the entry."""
    known = Layout(**entry["layout"])
    if known.context != layout.context or known.replicate > 1:
        raise ValueError(f"a step with layout {known} says nothing of {layout}")
    kept = known.weights / layout.weights
    more = {name: padding(entry[name], known, layout) for name in ("padded", "padded_trained")}
    traffic = [scaled(Traffic(**without_sent(found)), layout, packs, more) for found in entry["traffic"]]
    if layout.replicate > 1:
        scatter = next(found for found in traffic if found.op == "reduce_scatter")
        span = (layout.replicate - 1) * layout.weights + 1
        size = -(-scatter.payload // layout.weights // packs)  # once for all packs
        calls = scatter.calls // packs
        traffic.append(Traffic("all_reduce", "dp_replicate", layout.replicate, span, calls, size))
    work = StepWork(
        rank=0,
        ranks=layout.ranks,
        phases=(),
        traffic=[found for found in traffic if found.ranks > 1],
        model_flops=0,  # of no use to seconds
        hardware_flops=entry["hardware_flops"] * packs,
        attention_flops=entry["attention_flops"] * packs,
        skipped_flops=entry["skipped_flops"] * packs,
        moved_bytes=int(entry["moved_in_passes"] * packs + (entry["moved_bytes"] - entry["moved_in_passes"]) * kept),
        samples=entry["samples"] * packs,
        tokens=entry["tokens"] * packs,
        seconds=0.0,
    )
    step = step_seconds(work, gpu, compiled=entry["compiled"])
    assert step is not None, gpu
    return Cost(layout, work, memory(entry, kept, more), step)


def without_sent(traffic: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in traffic.items() if name != "sent"}


def padding(sizes: Sequence[int], known: Layout, layout: Layout) -> float:
    """How much larger tensors are, rounded up to a row for each rank, than in the known layout."""
    return sizes[int(log2(layout.weights))] / sizes[int(log2(known.weights))]


def scaled(traffic: Traffic, layout: Layout, packs: int, more: Mapping[str, float]) -> Traffic:
    """The same tensors among more ranks, once for each pack."""
    if traffic.group == "dp_shard":
        larger = more["padded_trained" if traffic.op == "reduce_scatter" else "padded"]
        traffic = replace(traffic, ranks=layout.weights, span=layout.weights, payload=int(traffic.payload * larger))
    return replace(traffic, calls=traffic.calls * packs, payload=traffic.payload * packs)


def memory(entry: Mapping[str, Any], kept: float, more: Mapping[str, float]) -> int:
    """Bytes of tensors at the worst moment, where a rank keeps `kept` times the share of the weights."""
    times = {"parameters": kept * more["padded"], "average": kept * more["padded"]}
    times |= {"gradients": kept * more["padded_trained"], "moments": kept * more["padded_trained"]}
    times |= {"gathered": more["padded"], "communication": more["padded"]}
    return max(
        int(sum(size * times.get(kind, 1) for kind, size in phase["kinds"].items())) for phase in entry["phases"]
    )


def layouts(ranks: int, context: int = 1) -> list[Layout]:
    """All with powers of two, the whole number of ranks cut first."""
    shares = ranks // context
    found, shard = [], shares
    while shard >= 1:
        found.append(Layout(shard, shares // shard, context))
        shard //= 2
    return found


def best(entry: Mapping[str, Any], ranks: int, gpu: Gpu, *, packs: int = 1) -> Cost | None:
    """Of the layouts that fit into the GPU and are within 2 % of the quickest the one that is cut most.

    None where none fits. What counts is the slow end, where nothing is hidden.
    """
    costs = [cost(entry, layout, gpu, packs=packs) for layout in layouts(ranks, entry["layout"]["context"])]
    fitting = [found for found in costs if MemoryVerdict(gpu, found.peak, ranks).spare >= 0]
    quickest = min((found.step.total.slow for found in fitting), default=0.0)
    return next((found for found in fitting if found.step.total.slow <= NEAR * quickest), None)


@dataclass(frozen=True)
class Failures:
    """What failures and saves cost; times in seconds."""

    between: float
    """From one failure to the next, of all GPUs."""
    stall: float
    """That the steps wait for the copy of a save."""
    write: float
    """Until a checkpoint is complete."""

    def lost(self, interval: float) -> float:
        """Share of the time that saves take, and work that is done again, and restarts.

        A failure costs half an interval, and the one before where the checkpoint is still being written.
        """
        again = interval / 2 + self.write + RESTART + self.write  # written, and read
        return self.stall / interval + again / self.between

    @property
    def optimum(self) -> float:
        """Young, "A first order approximation to the optimum checkpoint interval", 1974; not before it is written."""
        return max(sqrt(2 * self.stall * self.between), self.write)


def failures(checkpoint_bytes: int, layout: Layout) -> Failures:
    """With the middles of the planner's rates."""
    write = divide_by_rates(checkpoint_bytes, EFFICIENCIES["disk"][0]).middle
    stall = divide_by_rates(checkpoint_bytes / layout.weights, EFFICIENCIES["staging"][0]).middle
    return Failures(HOURS_BETWEEN_FAILURES * 3600 / layout.ranks, stall, write)
