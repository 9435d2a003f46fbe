"""Estimates the time of a step and of a run as a range: work divided by peak rates times assumed efficiencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import ceil, log2
from typing import TYPE_CHECKING, Any

from worldsmith.distributed.gpus import Gpu
from worldsmith.planning.work import StepWork, Traffic

if TYPE_CHECKING:
    from worldsmith.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class EstimateRange:
    """An estimate as a range from an optimistic value (`fast`) to a pessimistic one (`slow`)."""

    fast: float
    slow: float

    def __add__(self, other: EstimateRange) -> EstimateRange:
        return EstimateRange(self.fast + other.fast, self.slow + other.slow)

    def __mul__(self, times: float) -> EstimateRange:
        return EstimateRange(self.fast * times, self.slow * times)

    @property
    def middle(self) -> float:
        return (self.fast + self.slow) / 2


NOTHING = EstimateRange(0.0, 0.0)

EFFICIENCIES = {
    "matmuls": (EstimateRange(0.94, 0.56), "of the FLOP/s that one large matmul reaches"),
    "attention": (
        EstimateRange(0.6, 0.275),
        "of the FLOP/s that one large matmul reaches, by attention forward and backward",
    ),
    "memory": (EstimateRange(0.85, 0.6), "of the bandwidth, by all other operators"),
    "unfused": (EstimateRange(0.3, 0.5), "of the bytes of all other operators remain if layers are compiled"),
    "links": (EstimateRange(0.85, 0.6), "of the link rate, by collectives of large tensors"),
    "copies": (EstimateRange(0.85, 0.6), "of the bandwidth to host RAM, by copies of offloaded tensors"),
    "disk": (EstimateRange(4e9, 0.5e9), "bytes per second that all machines together write"),
    "staging": (EstimateRange(25e9, 8e9), "bytes per second from a GPU to host RAM"),
}
"""Assumed efficiencies (fast, slow), each with the quantity that it multiplies; rates for "disk" and "staging"."""
STARTED, HOP, NETWORK_HOP = 8.4e-6, 3.4e-6, 14e-6
"""Assumed latencies in seconds: start of a collective, hop inside a machine, hop between machines. NCCL's tuning model
uses these values for large tensors."""
HIDDEN = ("dp_shard", "dp_replicate", "world")
"""Process groups whose collectives can overlap with computation; context-parallel collectives cannot."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Estimated seconds of one optimizer step, without data loading and kernel launches."""

    total: EstimateRange
    """Step time in s; `fast`: collectives of weights and gradients and copies of offloaded weights overlap with
    computation, `slow`: they do not."""
    overlapped: EstimateRange
    """Step time in s if these copies overlap with computation, from high to low efficiencies."""
    separate: EstimateRange
    """Step time in s if these copies do not overlap with computation, from high to low efficiencies."""
    bound: str
    """Longest part of the step time, a key of `terms`."""
    terms: Mapping[str, EstimateRange]
    """Seconds by term: matmuls, attention, memory, communication inside a machine and between machines, copies."""


def step_seconds(work: StepWork, gpu: Gpu, *, compiled: bool) -> StepSeconds | None:
    """Estimates the seconds of one step; None if the FLOP/s and bandwidth of `gpu` are not known.

    Args:
        work: Simulated step of one rank.
        gpu: GPU of each rank.
        compiled: Whether layers are compiled, which fuses elementwise operators.
    """
    if not gpu.peak_flops:
        return None
    peak, bandwidth = gpu.peak_flops * gpu.reached, gpu.bandwidth
    terms = {
        "matmuls": estimate_seconds(work.hardware_flops - work.attention_flops, peak, "matmuls"),
        "attention": estimate_seconds(work.attention_flops - work.skipped_flops, peak, "attention"),
        "memory": estimate_seconds(work.moved_bytes, bandwidth, "memory"),
    }
    if compiled:
        remaining = EFFICIENCIES["unfused"][0]
        terms["memory"] = EstimateRange(terms["memory"].fast * remaining.fast, terms["memory"].slow * remaining.slow)
    computed = sum(terms.values(), NOTHING)
    hidden = waited = NOTHING
    for traffic in work.traffic:
        seconds = estimate_seconds(traffic.sent, rate(traffic, gpu), "links") + latency(traffic, gpu) * traffic.calls
        place = "between machines" if spans_machines(traffic, gpu) else "inside a machine"
        terms[place] = terms.get(place, NOTHING) + seconds
        if traffic.group in HIDDEN:
            hidden += seconds
        else:
            waited += seconds
    waited += estimate_seconds(work.activation_copy_bytes, gpu.host_link, "copies")
    copied = estimate_seconds(max(work.to_device_bytes, work.to_host_bytes), gpu.host_link, "copies")
    if work.copied_bytes:
        terms["copies"] = estimate_seconds(work.copied_bytes, gpu.host_link, "copies")
    own = EstimateRange(max(computed.fast, hidden.fast), computed.slow + hidden.slow)
    overlapped = EstimateRange(max(own.fast, copied.fast), max(own.slow, copied.slow)) + waited
    separate = own + estimate_seconds(work.to_device_bytes + work.to_host_bytes, gpu.host_link, "copies") + waited
    total = EstimateRange(overlapped.fast, separate.slow)
    return StepSeconds(total, overlapped, separate, max(terms, key=lambda name: terms[name].middle), terms)


def estimate_seconds(amount: float, rate: float, kind: str) -> EstimateRange:
    """Estimates the seconds for `amount` FLOPs or bytes at the peak `rate` per second times `EFFICIENCIES[kind]`."""
    return divide_by_rates(amount, EFFICIENCIES[kind][0] * rate)


def divide_by_rates(amount: float, rates: EstimateRange) -> EstimateRange:
    return EstimateRange(amount / rates.fast, amount / rates.slow)


def spans_machines(traffic: Traffic, gpu: Gpu) -> bool:
    """Returns whether the process group of `traffic` has ranks on more than one machine."""
    return traffic.span > gpu.per_machine


def latency(traffic: Traffic, gpu: Gpu) -> EstimateRange:
    """Returns the latency in seconds of one call of a collective: fast for a tree over the ranks, slow for a ring."""
    machines = min(traffic.ranks, -(-traffic.span // gpu.per_machine))
    times = 2 if traffic.op == "all_reduce" else 1
    tree = HOP * ceil(log2(traffic.ranks / machines)) + NETWORK_HOP * ceil(log2(machines))
    ring = HOP * (traffic.ranks - machines) + NETWORK_HOP * (machines - 1)
    return EstimateRange(STARTED + times * tree, STARTED + times * ring)


def rate(traffic: Traffic, gpu: Gpu) -> float:
    """Returns the peak rate at which each rank sends the data of a collective, in bytes per second.

    A ring between machines uses the network links of all ranks that the group has on a machine. In an all-to-all each
    rank uses its own link for the data of other machines.
    """
    if not spans_machines(traffic, gpu):
        return gpu.link
    step = max(1, (traffic.span - 1) // (traffic.ranks - 1))
    here = max(1, gpu.per_machine // step)
    factor = (traffic.ranks - 1) / (traffic.ranks - here) if traffic.op == "all_to_all" else here
    return min(gpu.link, gpu.network * factor)


FORWARD = EstimateRange(0.25, 0.5)
"""Assumed fraction of a step's time in the forward pass: 1/4 with gradient checkpointing, 1/2 for adapters."""


@dataclass(frozen=True, slots=True)
class RunTime:
    """Estimated seconds of a run, without loading weights, sample generation and waiting for data."""

    ranks: int
    count: int
    """Number of optimizer steps of the run."""
    steps: EstimateRange
    saves: EstimateRange
    """Seconds during which training waits for checkpoints to be saved."""
    validation: EstimateRange | None
    """Seconds of all validations; None: not known, because the number of validation batches is not limited."""

    @property
    def total(self) -> EstimateRange:
        return self.steps + self.saves + (self.validation or NOTHING)

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": asdict(self.total),
            "gpu_hours": asdict(self.total * (self.ranks / 3600)),
            "count": self.count,
            "steps": asdict(self.steps),
            "saves": asdict(self.saves),
            "validation": None if self.validation is None else asdict(self.validation),
        }


def run_time(
    config: Trainer.Config, step: StepSeconds, *, ranks: int, staged_bytes: int, checkpoint_bytes: int
) -> RunTime:
    """Estimates the seconds of all steps, saves and validations of a run.

    Args:
        config: Config of the run.
        step: Estimated seconds of one step.
        ranks: Number of ranks.
        staged_bytes: Bytes that a rank copies to host RAM for a save.
        checkpoint_bytes: Size of one checkpoint.
    """
    loop, settings = config.trainer, config.checkpoint
    written = divide_by_rates(checkpoint_bytes, EFFICIENCIES["disk"][0])
    staged = divide_by_rates(staged_bytes, EFFICIENCIES["staging"][0])
    saves = -(-loop.max_iter // settings.save_iter)
    waited = staged * (saves - 1) + written if settings.async_save else written * saves
    return RunTime(ranks, loop.max_iter, step.total * loop.max_iter, waited, validation_time(config, step))


def validation_time(config: Trainer.Config, step: StepSeconds) -> EstimateRange | None:
    """Estimates the seconds of all validations, with raw and EMA weights; None if `max_val_iter` is None."""
    loop = config.trainer
    if not loop.run_validation:
        return NOTHING
    if loop.max_val_iter is None:
        return None
    times = loop.run_validation_on_start + -(-loop.max_iter // loop.validation_iter)
    packs = times * loop.max_val_iter * (2 if config.model.config.ema.enabled else 1) / loop.grad_accum_iter
    return EstimateRange(step.total.fast * FORWARD.fast, step.total.slow * FORWARD.slow) * packs
