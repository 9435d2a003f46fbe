"""A plan for people, in at most 100 columns, or the terminal's: the answer first, what was assumed for it last."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from worldsmith.distributed.gpus import GIB, Gpu
from worldsmith.monitor.short_text import format_bytes, short_number
from worldsmith.monitor.terminal_text import fitting_columns, text_width
from worldsmith.planning.estimate_memory import worst_phase
from worldsmith.planning.estimate_time import EstimateRange, StepSeconds, spans_machines

if TYPE_CHECKING:
    from worldsmith.planning.estimate_time import RunTime
    from worldsmith.planning.plan import Plan, QuickPlan
    from worldsmith.planning.work import PhaseMemory

T = TypeVar("T")
TIE = "\u00a0"
"""A space at which no line ends."""
FIRST = 13
"""Columns of the word that says what a line is about."""
LEAST = 0.005
"""Less than this of the table's unit is nothing."""
HOLDERS = 6
"""GPUs that are named as large enough, the smallest first."""
MAKERS = 3
"""Parts of the network that are named as makers of the peak, and kinds of what is held then."""
KINDS = {
    "parameters": "weights",
    "gradients": "grads",
    "moments": "moments",
    "average": "average",
    "activations": "activ.",
    "gathered": "gathered",
    "communication": "comm.",
    "inputs": "inputs",
}
"""Columns in their order, with their names; others follow."""
PHASES = ("building", "loading", "encoding", "forward", "backward", "optimizer", "average", "saving", "validation")
"""Rows in their order; others follow."""


def quick_lines(name: str, quick: QuickPlan, gpu: Gpu, ranks: int, degrees: object) -> Iterator[str]:
    """What is known at once, and exact."""
    gpus = "1 GPU" if ranks == 1 else f"{ranks} GPUs ({degrees})"
    yield from line("run", f"{name} on {gpus}, {gpu.name} with {size(gpu.memory)}")
    trained = quick.trained / max(1, quick.parameters)
    of_all = "all of them" if quick.trained == quick.parameters else f"{trained:.1%}"
    numbers = f"{short_number(quick.parameters)} parameters, {short_number(quick.trained)} trained ({of_all})"
    yield from line("model", numbers)
    yield from line("states", f"{size(sum(quick.states.values()))} on each GPU: {parts_of(quick.states)}")
    if sum(quick.states.values()) > gpu.memory:
        yield from line("", f"more than {gpu.name} has, before anything is computed")


def plan_lines(plan: Plan) -> Iterator[str]:
    """What follows `quick_lines`."""
    yield from memory_lines(plan)
    yield ""
    yield from format_memory_table(plan.work.phases)
    yield ""
    yield from time_lines(plan)
    if plan.ranks > 1:
        yield from traffic_lines(plan)
    yield from line("main memory", f"{size(plan.host.total)} on each machine: {parts_of(plan.host.parts)}")
    checkpoint = f"{size(plan.quick.checkpoint_bytes)} for each checkpoint"
    yield from line("disk", f"{size(plan.disk.total)}: {parts_of(plan.disk.parts)} ({checkpoint})")
    yield ""
    yield "assumed"
    for about, value in plan.assumptions.items():
        yield from line(f"  {about}", value, first=max(len(name) for name in plan.assumptions) + 4)


def memory_lines(plan: Plan) -> Iterator[str]:
    memory, worst = plan.memory, worst_phase(plan.work)[0]
    room = f"{size(memory.spare)} to spare" if memory.spare >= 0 else f"{size(-memory.spare)} too much"
    if memory.word == "tight":
        room = "no room for pieces that the allocator cannot use"
    yield from line("memory", f"{memory.word.upper()}: {size(memory.needed)} of {size(memory.gpu.memory)}, {room}")
    parts = {
        "tensors": memory.peak,
        "encoders": memory.encoders,
        "pieces": memory.fragmentation,
        "context": memory.context,
    }
    parts |= {"collectives": memory.communication}
    yield from line("", parts_of(parts))
    kinds = sorted(worst.kinds.items(), key=lambda kind: -kind[1])
    yield from line("peak", f"in the phase {worst.name}: {parts_of(dict(kinds[:MAKERS]))}")
    if worst.kinds.get("activations"):
        made = {name: count for name, count in makers(worst).most_common(MAKERS) if count >= 2**20}
        yield from line("", f"activations of {parts_of(made)}" if made else "")
    holders = memory.holders
    more = f" and {len(holders) - HOLDERS} more" if len(holders) > HOLDERS else ""
    yield from line("fits on", f"{', '.join(holders[:HOLDERS])}{more}" if holders else "no GPU that is known here")
    if memory.word != "fits":
        yield from line("to do", "add --fit to the command: it looks for settings that fit")


def makers(phase: PhaseMemory) -> Counter[str]:
    """Bytes of activations by the part that made them; what is within a layer counts as that of all such layers."""
    found, outside = Counter[str](), "the encoders" if phase.name == "encoding" else "the rest"
    for name, count in phase.modules:
        head, star, _ = name.partition(".*")
        found[head + star or outside] += count
    return found


def format_memory_table(phases: Sequence[PhaseMemory]) -> Iterator[str]:
    """Memory of each kind at each phase's worst moment; kinds that are nowhere are left out."""
    unit, name = (GIB, "GiB") if max(phase.peak for phase in phases) >= GIB else (2**20, "MiB")
    rows = in_order({phase.name: phase for phase in phases}, PHASES)
    held = {kind for phase in phases for kind, count in phase.kinds.items() if count >= LEAST * unit}
    kinds = in_order(dict.fromkeys(sorted(held), 0), KINDS)
    entries = [[name, "all", *(KINDS.get(kind, kind) for kind in kinds)]]
    for title, phase in rows.items():
        counts = [phase.peak, *(phase.kinds.get(kind, 0) for kind in kinds)]
        entries.append([title, *("-" if count < LEAST * unit else f"{count / unit:.2f}" for count in counts)])
    first, *widths = [max(map(len, column)) for column in zip(*entries, strict=True)]
    parts = fitting_columns(widths, text_width() - first)
    for number, columns in enumerate(parts):
        if number:
            yield ""
        for title, *cells in entries:
            yield "  ".join([title.ljust(first), *(cells[column].rjust(widths[column]) for column in columns)])


def in_order(found: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    """Those of the names first, in their order, and then the others."""
    return {**{name: found[name] for name in names if name in found}, **found}


def time_lines(plan: Plan) -> Iterator[str]:
    work, step, time = plan.work, plan.step, plan.time
    held = f"{short_number(plan.samples)} sample{'s' * (plan.samples != 1)}, {short_number(plan.tokens)} tokens"
    done = f"{flops(work.model_flops)} for the model"
    if work.hardware_flops > work.model_flops:
        done += f", {flops(work.hardware_flops)} with what is computed again"
    if step is None or time is None:
        yield from line("step", held)
        yield from line("", f"{done}, on each GPU")
        yield from line("time", f"not known: {plan.untimed}")
        return
    yield from line("step", f"{span(step.total)} for {held}; most of it {step.bound}")
    yield from line("", f"{done}, on each GPU: {mfu(plan, step)} of its peak are the model's (MFU)")
    hours = time.total * (plan.ranks / 3600)
    yield from line(
        "time", f"{span(time.total)} for {time.count} steps, {format_range(hours)} GPU-hours{besides(time)}"
    )


def besides(time: RunTime) -> str:
    rest = {"saves": time.saves, "validation": time.validation}
    told = [f"{name} {span(seconds)}" for name, seconds in rest.items() if seconds is not None and seconds.slow >= 1]
    return f"; {', '.join(told)} of it" if told else ""


def mfu(plan: Plan, step: StepSeconds) -> str:
    slow, fast = (plan.work.model_flops / (plan.gpu.peak_flops * t) for t in (step.total.slow, step.total.fast))
    return f"{slow:.0%} to {fast:.0%}"


def traffic_lines(plan: Plan) -> Iterator[str]:
    """What a GPU sends in a step, by where it goes."""
    for outside, word in ((False, "in machine"), (True, "network")):
        sent = Counter[str]()
        for traffic in plan.work.traffic:
            if spans_machines(traffic, plan.gpu) is outside:
                sent[f"{traffic.op} ({traffic.group})"] += traffic.sent
        if sent:
            large = {name: count for name, count in sent.most_common() if count >= 2**20}
            yield from line(word, f"each GPU sends {size(sent.total())} a step{': ' * bool(large)}{parts_of(large)}")


def line(about: str, text: str, *, first: int = FIRST) -> Iterator[str]:
    """The word, and the text in as many lines as it needs."""
    lines = textwrap.wrap(text, text_width() - first, break_long_words=False, break_on_hyphens=False)
    for number, part in enumerate(lines):
        yield f"{about if number == 0 else '':<{first}}{part}".replace(TIE, " ")


def flops(count: float) -> str:
    """1.2 PFLOP."""
    power, letter = next(
        (p, word) for p, word in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (0, "M")) if count >= p
    )
    return f"{count / (power or 1e6):.3g} {letter}FLOP"


def size(count: int) -> str:
    """12.3 GiB, 212 MiB."""
    return format_bytes(count, gib=",.1f", mib=",.0f", gib_from=GIB // 2).replace(" ", TIE)


def parts_of(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size(count)}" for name, count in parts.items() if count)


def span(seconds: EstimateRange) -> str:
    """1.9 to 3.8 s, 3 to 5 min, 2.1 to 4 h."""
    units = ((3600, "h"), (60, "min"), (1, "s"), (0, "ms"))
    unit, name = next((unit or 1e-3, name) for unit, name in units if seconds.slow >= 2 * unit)
    return f"{format_range(seconds * (1 / unit))}{TIE}{name}"


def format_range(numbers: EstimateRange) -> str:
    fast, slow = (f"{number:,.0f}" if number >= 100 else f"{number:.2g}" for number in (numbers.fast, numbers.slow))
    return fast if fast == slow else f"{fast}{TIE}to{TIE}{slow}"
