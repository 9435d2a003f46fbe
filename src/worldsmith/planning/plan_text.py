"""Formats a plan as text for the terminal: the verdict first, the assumptions last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from worldsmith.distributed.gpus import GIB, Gpu
from worldsmith.monitor.short_text import MEMORY_NAMES, format_bytes, short_number
from worldsmith.monitor.terminal_text import table_lines, text_width, wrap_words
from worldsmith.planning.estimate_memory import worst_phase
from worldsmith.planning.estimate_time import EstimateRange, RunTime, StepSeconds, spans_machines
from worldsmith.planning.work import BEFORE, ENCODING_FIRST, PhaseMemory

if TYPE_CHECKING:
    from worldsmith.planning.plan import Plan, QuickPlan

T = TypeVar("T")
TIE = "\u00a0"
"""No-break space: text is not wrapped here."""
FIRST = 13
"""Width of the label column."""
LEAST = 0.005
"""Smallest value, in the unit of the memory table, that is not shown as "-"."""
HOLDERS = 6
"""Max number of GPUs that are listed as large enough."""
MAKERS = 3
"""Max number of modules and of memory categories that are listed for the peak."""
KINDS = {
    "parameters": "weights",
    "gradients": "grads",
    "moments": "optim.",
    "average": "EMA",
    "activations": "activ.",
    "gathered": "all-gath.",
    "communication": "comm.",
    "inputs": "inputs",
}
"""Column titles of the memory table by memory category, in order; other categories follow."""
PHASES = (*BEFORE, "encoding", "forward", "backward", "optimizer", "average", "saving", "validation")
"""Phases in the row order of the memory table; other phases follow."""


def quick_lines(name: str, quick: QuickPlan, gpu: Gpu, ranks: int, degrees: object) -> Iterator[str]:
    """Yields the lines with exact values that are printed before the simulation.

    Args:
        name: Name of the run.
        quick: Exact sizes of the run.
        gpu: GPU of each rank.
        ranks: Number of ranks.
        degrees: Parallelism degrees; printed with `str` if there are several ranks.
    """
    gpus = "1 GPU" if ranks == 1 else f"{ranks} GPUs ({degrees})"
    yield from wrap_row("run", f"{name} on {gpus}, {gpu.name} with {size(gpu.memory)}")
    trained = quick.trained / max(1, quick.parameters)
    of_all = "all of them" if quick.trained == quick.parameters else f"{trained:.1%}"
    numbers = f"{short_number(quick.parameters)} parameters, {short_number(quick.trained)} trained ({of_all})"
    yield from wrap_row("model", numbers)
    states = parts_of(quick.states) or "all in host RAM"
    yield from wrap_row("states", f"{size(sum(quick.states.values()))} on each GPU: {states}")
    if sum(quick.states.values()) > gpu.memory:
        yield from wrap_row("", f"weights and optimizer state alone exceed the memory of {gpu.name}")


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yields the lines that follow `quick_lines`: memory, time, communication, host RAM, disk and assumptions."""
    yield from memory_lines(plan)
    yield ""
    yield from format_memory_table(plan.work.phases)
    yield ""
    yield from time_lines(plan)
    if plan.ranks > 1:
        yield from traffic_lines(plan)
    yield from wrap_row("host RAM", f"{size(plan.host.total)} on each machine: {parts_of(plan.host.parts)}")
    checkpoint = f"{size(plan.quick.checkpoint_bytes)} per checkpoint"
    yield from wrap_row("disk", f"{size(plan.disk.total)}: {parts_of(plan.disk.parts)} ({checkpoint})")
    yield ""
    yield "assumed"
    for topic, value in plan.assumptions.items():
        yield from wrap_row(f"  {topic}", value, first=max(len(name) for name in plan.assumptions) + 4)


def memory_lines(plan: Plan) -> Iterator[str]:
    """Yields the lines on GPU memory: verdict, breakdown of the peak, and GPUs that are large enough."""
    memory, worst = plan.memory, worst_phase(plan.work)[0]
    margin = f"{size(memory.spare)} free" if memory.spare >= 0 else f"{size(-memory.spare)} too much"
    if memory.word == "tight":
        margin = "no reserve for fragmentation"
    yield from wrap_row(
        "memory", f"{memory.word.upper()}: {size(memory.needed)} of {size(memory.gpu.memory)}, {margin}"
    )
    parts = {
        "tensors": memory.peak,
        "encoders": memory.encoders,
        "fragmentation": memory.fragmentation,
        "CUDA context": memory.context,
        "collectives": memory.communication,
    }
    yield from wrap_row("", parts_of(parts))
    kinds = sorted(worst.kinds.items(), key=lambda kind: -kind[1])
    yield from wrap_row("peak", f"in the phase {worst.name}: {parts_of(dict(kinds[:MAKERS]))}")
    if worst.kinds.get("activations"):
        made = {name: count for name, count in activations_by_module(worst).most_common(MAKERS) if count >= 2**20}
        yield from wrap_row("", f"activations of {parts_of(made)}" if made else "")
    holders = memory.holders
    more = f" and {len(holders) - HOLDERS} more" if len(holders) > HOLDERS else ""
    yield from wrap_row("fits on", f"{', '.join(holders[:HOLDERS])}{more}" if holders else "no known GPU")
    if memory.word != "fits":
        yield from wrap_row("to do", "add --fit to the command to search for settings that fit")


def activations_by_module(phase: PhaseMemory) -> Counter[str]:
    """Returns activation bytes by top-level module of a phase; modules within repeated layers are summed."""
    found, outside = Counter[str](), "the encoders" if phase.name in ("encoding", ENCODING_FIRST) else "the rest"
    for name, count in phase.modules:
        layers, star, _ = name.partition(".*")
        found[layers + star or outside] += count
    return found


def format_memory_table(phases: Sequence[PhaseMemory]) -> Iterator[str]:
    """Yields the lines of a table: memory by phase (rows) and category (columns); empty categories are omitted."""
    unit, name = (GIB, "GiB") if max(phase.peak for phase in phases) >= GIB else (2**20, "MiB")
    rows = order_keys({phase.name: phase for phase in phases}, PHASES)
    held = {kind for phase in phases for kind, count in phase.kinds.items() if count >= LEAST * unit}
    kinds = order_keys(dict.fromkeys(sorted(held), 0), KINDS)
    entries = [[name, "all", *(KINDS.get(kind, kind) for kind in kinds)]]
    for title, phase in rows.items():
        counts = [phase.peak, *(phase.kinds.get(kind, 0) for kind in kinds)]
        row = ["-" if count < LEAST * unit else f"{count / unit:.2f}" for count in counts]
        entries.append(["EMA update" if title == "average" else title, *row])
    yield from table_lines(entries, text_width(), str.rjust)


def order_keys(found: Mapping[str, T], first: Iterable[str]) -> dict[str, T]:
    """Sorts the keys of `found`: those in `first` come first, in the order of `first`."""
    return {**{name: found[name] for name in first if name in found}, **found}


def time_lines(plan: Plan) -> Iterator[str]:
    """Yields the lines on one step and on the time of the run, or the reason why the time is not estimated."""
    work, step, time = plan.work, plan.step, plan.time
    batch = f"{short_number(plan.samples)} sample{'s' * (plan.samples != 1)}, {short_number(plan.tokens)} tokens"
    done = f"{format_flops(work.model_flops)} for the model"
    if work.hardware_flops > work.model_flops:
        done += f", {format_flops(work.hardware_flops)} including recomputation"
    if step is None or time is None:
        yield from wrap_row("step", batch)
        yield from wrap_row("", f"{done}, on each GPU")
        yield from wrap_row("time", f"unknown: {plan.untimed}")
        return
    yield from wrap_row("step", f"{format_duration_range(step.total)} for {batch}; most of it {step.bound}")
    yield from wrap_row("", f"{done}, on each GPU: {mfu(plan, step)} model FLOPs utilization (MFU)")
    yield from copy_lines(plan, step)
    hours, total, parts = time.total * (plan.ranks / 3600), format_duration_range(time.total), format_time_parts(time)
    yield from wrap_row("time", f"{total} for {time.count} steps, {format_range(hours)} GPU-hours{parts}")


def copy_lines(plan: Plan, step: StepSeconds) -> Iterator[str]:
    """Yields the lines on the copies between GPU and host RAM in a step; no lines without offload."""
    work, speed = plan.work, f"{plan.gpu.host_link / 1e9:g} GB/s per direction"
    moved = {"weights to the GPU": work.to_device_bytes, "gradients and weights to host RAM": work.to_host_bytes}
    moved["activations to host RAM and back"] = work.activation_copy_bytes
    copied = ", ".join(f"{size(count)} of {name}" for name, count in moved.items() if count)
    if copied:
        times = (step.terms["copies"], step.overlapped, step.separate)
        copies, overlapped, separate = map(format_duration_range, times)
        yield from wrap_row("copies", f"{copied} per step, at most {speed}: {copies}")
        yield from wrap_row("", f"a step takes {overlapped} if copies of weights overlap with it, {separate} if not")


def format_time_parts(time: RunTime) -> str:
    rest = {"saves": time.saves, "validation": time.validation}
    parts = [
        f"{name} {format_duration_range(seconds)}"
        for name, seconds in rest.items()
        if seconds is not None and seconds.slow >= 1
    ]
    return f"; {', '.join(parts)} of it" if parts else ""


def mfu(plan: Plan, step: StepSeconds) -> str:
    slow, fast = (plan.work.model_flops / (plan.gpu.peak_flops * t) for t in (step.total.slow, step.total.fast))
    return f"{slow:.0%} to {fast:.0%}"


def traffic_lines(plan: Plan) -> Iterator[str]:
    """Yields the lines on bytes that each GPU sends per step, inside a machine and over the network."""
    for outside, word in ((False, "in machine"), (True, "network")):
        sent = Counter[str]()
        for traffic in plan.work.traffic:
            if spans_machines(traffic, plan.gpu) is outside:
                sent[f"{traffic.op} ({traffic.group})"] += traffic.sent
        if sent:
            large = {name: count for name, count in sent.most_common() if count >= 2**20}
            yield from wrap_row(
                word, f"each GPU sends {size(sent.total())} per step{': ' * bool(large)}{parts_of(large)}"
            )


def wrap_row(label: str, text: str, *, first: int = FIRST) -> Iterator[str]:
    """Yields the lines of a label followed by its text, wrapped to the terminal width.

    Args:
        label: Label in the first line; following lines are indented.
        text: Text without line breaks.
        first: Width of the label column.
    """
    for number, part in enumerate(wrap_words(text, text_width() - first)):
        yield f"{label if number == 0 else '':<{first}}{part}".replace(TIE, " ")


def format_flops(count: float) -> str:
    """Formats a number of FLOPs, such as "1.2 PFLOP"."""
    power, letter = next(
        (p, word) for p, word in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (0, "M")) if count >= p
    )
    return f"{count / (power or 1e6):.3g} {letter}FLOP"


def size(count: int) -> str:
    """Formats a number of bytes, such as "12.3 GiB" or "212 MiB", with a no-break space."""
    return format_bytes(count, gib=",.1f", mib=",.0f", gib_from=GIB // 2).replace(" ", TIE)


def parts_of(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{MEMORY_NAMES.get(name, name)} {size(count)}" for name, count in parts.items() if count)


def format_duration_range(seconds: EstimateRange) -> str:
    """Formats a time range, such as "1.9 to 3.8 s" or "3 to 5 min"."""
    units = ((3600, "h"), (60, "min"), (1, "s"), (0, "ms"))
    unit, name = next((unit or 1e-3, name) for unit, name in units if seconds.slow >= 2 * unit)
    return f"{format_range(seconds * (1 / unit))}{TIE}{name}"


def format_range(numbers: EstimateRange) -> str:
    fast, slow = (f"{number:,.0f}" if number >= 100 else f"{number:.2g}" for number in (numbers.fast, numbers.slow))
    return fast if fast == slow else f"{fast}{TIE}to{TIE}{slow}"
