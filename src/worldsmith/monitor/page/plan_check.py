"""Compares the plan of a run with its measurements, to show how accurate plans are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from worldsmith.monitor.page.formats import format_count, seconds, size
from worldsmith.monitor.page.run_files import RunFiles, lookup

BOUNDS = {"memory": 0.1, "seconds": 0.2, "tokens": 0.1, "share": 0.2, "checkpoint": 0.02}
"""Max relative difference of a measured value from the planned value or range, by kind of value."""
LEAST = 2**30
"""Min planned bytes for a comparison of host RAM: below it, libraries are too large a part of the process."""
FIRST_STEPS = 0.1
"""Fraction of the logged steps, at least one, that are excluded from a median as warm-up."""
FORMS = {
    "memory": size,
    "seconds": seconds,
    "tokens": format_count,
    "share": lambda of: f"{of:.0%}",
    "checkpoint": size,
}


@dataclass(frozen=True, slots=True)
class Check:
    """Comparison of a value planned by `worldsmith plan`, a range from `low` to `high`, with the measured value."""

    kind: str
    """Key of `BOUNDS`, which determines tolerance and format."""
    name: str
    """Name of the value in the report."""
    low: float
    high: float
    measured: float | None
    """Measured value; None: not known yet."""
    about: str = ""
    """Note on what is measured."""
    is_judged: bool = True
    """Whether plan and run are comparable; False: both values are only shown."""

    @property
    def ratio(self) -> float | None:
        """Measured value divided by the nearer end of the planned range; 1 within it; None if either is unknown."""
        if self.measured is None or self.low <= 0:
            return None
        return self.measured / min(max(self.measured, self.low), self.high)

    @property
    def is_good(self) -> bool | None:
        """Whether `ratio` is within the tolerance of this kind of value; None if it is not known or not comparable."""
        if self.ratio is None or not self.is_judged:
            return None
        bound = BOUNDS[self.kind]
        return 1 - bound <= self.ratio <= 1 + bound

    @property
    def planned(self) -> str:
        low, high = (FORMS[self.kind](end) for end in (self.low, self.high))
        return low if low == high else f"{low} to {high}"

    @property
    def found(self) -> str:
        return "–" if self.measured is None else FORMS[self.kind](self.measured)


def plan_checks(run: RunFiles) -> list[Check]:
    """Returns the comparisons of planned with measured values; empty without `plan.json` in the run folder."""
    return [] if not run.plan else list(checks_of(run))


def checks_of(run: RunFiles) -> Iterator[Check]:
    plan, comparable = run.plan, not why_incomparable(run)
    peak, before = (run.metrics.latest.get(f"{name}_bytes") for name in ("peak_memory", "memory_before"))
    used = max(0, peak - before) if peak is not None and before is not None else None  # the kernel counts roughly
    planned = planned_peak(plan)
    if gpu_names(run):
        yield Check("memory", "Peak memory", planned, planned, used, "tensors on the GPU", comparable)
    else:
        about = "planned: tensors; measured: growth of the process since before its network was built, with libraries"
        yield Check("memory", "Peak memory", planned, planned, used, about, comparable and planned >= LEAST)
    steps = steady_values(run, "step_seconds")
    about = f"median of {len(steps)} logged steps without warm-up steps, waiting for data included"
    fast, slow = (lookup_number(plan, f"seconds.total.{end}") for end in ("fast", "slow"))
    if fast:
        yield Check("seconds", "Seconds of a step", fast, slow, median_of(steps), about, comparable)
    tokens = [rate * length for rate, length in zip(steady_values(run, "tokens_per_second"), steps, strict=False)]
    expected = lookup_number(plan, "step.tokens")
    about = "sum over all processes; measured: median of the logged steps"
    yield Check("tokens", "Tokens of a step", expected, expected, rounded(median_of(tokens)), about, comparable)
    peak_flops = lookup_number(plan, "gpu.peak_flops")
    if fast and peak_flops:
        most, least = (lookup_number(plan, "step.work.model_flops") / (peak_flops * length) for length in (fast, slow))
        mfu = median_of(steady_values(run, "model_flops_share"))
        if mfu is not None:
            yield Check("share", "Fraction of the GPUs' peak", least, most, mfu, "FLOPs of the model", comparable)
    saved = lookup_number(plan, "quick.checkpoint_bytes")
    yield Check("checkpoint", "A checkpoint", saved, saved, checkpoint_bytes(run), "the newest, on disk", comparable)


def why_incomparable(run: RunFiles) -> str:
    """Returns a sentence if plan and run are not comparable: their numbers of GPUs differ; "" otherwise."""
    planned, processes = run.plan.get("gpus"), run.environment.get("world_size")
    if processes is not None and planned != processes:
        return f"The plan is for {planned} GPUs, but this run has {processes} processes."
    return ""


def list_advice(run: RunFiles, checks: list[Check]) -> Iterator[str]:
    """Yields a sentence of advice for each check whose measured value is out of tolerance (`is_good` is False)."""
    factors = {check.kind: check.ratio for check in checks if check.ratio is not None}
    tokens = factors.get("tokens", 1.0)
    for check in checks:
        if check.is_good is not False or check.ratio is None:
            continue
        more = check.ratio > 1
        match check.kind:
            case "memory" if more:
                text = (
                    "more memory was used than planned: check the tokens of a step, validation and sample "
                    "generation, which are separate phases, and gpu_bytes in DeviceMonitor/devices.jsonl over time"
                )
            case "memory":
                text = (
                    "less memory was used than planned: compiled layers keep fewer activations, and the plan uses "
                    "the largest of the first batches"
                )
            case "seconds" if abs(tokens - 1) > BOUNDS["tokens"]:
                ends = " to ".join(seconds(end * tokens) for end in (check.low, check.high))
                text = f"the steps have {tokens:.2f} times the planned tokens, for which about {ends} would be expected"
            case "seconds" if more:
                waited = median_of(steady_values(run, "data_wait_share"))
                fraction = "" if waited is None else f" ({waited:.0%} of a step)"
                text = (
                    f"check the time waiting for data{fraction} and model.config.compile.enabled, or profile some "
                    "steps with the override +trainer.callbacks.profiler=Profiler"
                )
            case "seconds":
                text = (
                    "the GPU reaches a larger fraction of its peak FLOP/s than the plan assumes; see the assumed "
                    "efficiencies in plan.json"
                )
            case "tokens":
                text = f"memory and seconds were planned with: {run.plan.get('data', '')}"
            case "share":
                text = "see the advice on the seconds of a step"
            case _:
                text = "check which weights are saved: checkpoint.save_weights and model.config.ema"
        yield f"{check.name}, {check.ratio:.2f} times the planned value: {text}."


def format_checks(checks: list[Check]) -> str:
    """Formats comparisons as one log line, such as "peak memory 12 GiB, planned 11 GiB; …"."""
    parts = (f"{c.name[0].lower()}{c.name[1:]} {c.found}, planned {c.planned}" for c in checks if c.is_good is not None)
    return "; ".join(parts).replace("\u202f", ",")


def format_plan(plan: Mapping[str, Any]) -> str:
    """Formats a parsed `plan.json` as one log line: peak memory, whether it fits the GPU, and seconds of a step."""
    needed, there = (size(lookup_number(plan, f"memory.{name}_bytes")) for name in ("needed", "gpu"))
    verdict = lookup(plan, "memory.verdict")
    text = f"peak memory {size(planned_peak(plan))}, with margins {needed} of {there}: {verdict}"
    fast, slow = (lookup_number(plan, f"seconds.total.{end}") for end in ("fast", "slow"))
    return f"{text}; a step {seconds(fast)} to {seconds(slow)}" if fast else text


def planned_peak(plan: Mapping[str, Any]) -> float:
    """Returns the peak bytes of tensors in a parsed `plan.json`, including encoders."""
    return lookup_number(plan, "memory.peak_bytes") + lookup_number(plan, "memory.encoders_bytes")


def list_phases(plan: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yields (name, peak bytes) of each phase in a parsed `plan.json`, largest first; last: ("with margins", total)."""
    found = [phase for phase in lookup(plan, "step.work.phases", []) if isinstance(phase, Mapping)]
    for phase in sorted(found, key=lambda phase: -lookup_number(phase, "peak")):
        yield str(phase.get("name")), int(lookup_number(phase, "peak"))
    yield "with margins", int(lookup_number(plan, "memory.needed_bytes"))


def gpu_names(run: RunFiles) -> list[str]:
    """Returns the names of the GPUs of the machine on which the run was started; empty without GPUs."""
    found = lookup(run.environment, "torch.devices", [])
    return [str(name) for name in found] if isinstance(found, list) else []


def steady_values(run: RunFiles, metric: str) -> list[float]:
    """Returns the logged values of a metric without those of the warm-up.

    The warm-up is the first value, or the fraction `FIRST_STEPS` of all values if that is more. For a downsampled
    metric, the values are means of several steps.
    """
    series = run.metrics.series.get(metric)
    values = [] if series is None else [bucket.total / bucket.count for bucket in series.buckets]
    return values[max(1, int(FIRST_STEPS * len(values))) :]


def median_of(values: list[float]) -> float | None:
    return median(values) if values else None


def rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def checkpoint_bytes(run: RunFiles) -> int | None:
    """Returns the size of the newest checkpoint in bytes; None without a checkpoint."""
    if not run.checkpoints:
        return None
    try:
        files = [path for path in (run.folder / "checkpoints" / run.checkpoints[-1]).rglob("*") if path.is_file()]
        return sum(path.stat().st_size for path in files)
    except OSError:  # it is being removed
        return None


def lookup_number(data: Mapping[str, Any], path: str) -> float:
    """Returns the number at the path `a.b.c` of nested mappings; 0 if it is missing or not a number."""
    value = lookup(data, path)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
