"""The tables of docs/scale.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scale_figures import NEAR, Cost, Layout, best, cost, failures, layouts
from scale_runs import CHECKS, CLIPS, RUNS

from worldsmith.distributed.gpus import GIB, GPUS, Gpu
from worldsmith.planning.estimate_memory import MemoryVerdict
from worldsmith.planning.estimate_time import EstimateRange

RANKS = [8 * 2**power for power in range(10)]
H100 = GPUS["h100-80"]
NETWORKS: dict[str, Gpu] = {
    "B200, 400 Gb/s each": GPUS["b200"],
    "H100, 400 Gb/s each": H100,
    "H100, 100 Gb/s each": replace(H100, network=12.5e9),
    "H100, 100 Gb/s a machine": replace(H100, network=12.5e9 / 8),
    "A100, 200 Gb/s each": GPUS["a100-80"],
    "L40S, 100 Gb/s each": GPUS["l40s"],
}
STRONG = [("nano", 64), ("nano", 512), ("wan-14b", 512), ("qwen3-vl-8b", 512)]
"""Runs with the packs of their step, where it is the same for every number of GPUs."""
SECOND_OF_VIDEO = 5e6 / 8
"""Assumed: bytes of H.264 of 1280 × 720 at 24 frames a second."""
FRAMES_A_CORE = 170
"""Frames a second of such video that a core decodes and makes small, measured with PyAV on an AMD EPYC."""
FRAMES = {"edge": 61, "nano": 61, "super": 61, "super-lora": 61, "cogvideox-5b": 49, "wan-14b": 81}
"""Of a clip."""
Entries = Mapping[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def figure(value: float) -> str:
    """Two digits that count."""
    return f"{float(f'{value:.2g}'):,g}"


def span(of: EstimateRange) -> str:
    return f"{figure(of.fast)} to {figure(of.slow)}"


def gigabytes(count: int) -> str:
    return f"{count / 1e9:,.3g}"


def title(name: str) -> str:
    return RUNS[name].title


def known(entries: Entries) -> list[str]:
    return [name for name in RUNS if name in entries]


def runs_table(entries: Entries) -> str:
    def row(name: str) -> list[str]:
        entry = entries[name]
        step = cost(entry, Layout(**entry["layout"]), H100).step.total
        return [
            f"{title(name)} (`{RUNS[name].recipe}`)",
            f"{entry['trained'] / 1e9:.2g} of {entry['parameters'] / 1e9:.3g} B",
            f"{entry['samples']} × {entry['tokens'] // entry['samples']:,}",
            f"{entry['hardware_flops'] / 1e12:,.0f}",
            f"{gigabytes(entry['checkpoint_bytes'])}, {gigabytes(entry['checkpoint_bytes_of_4096'])} GB",
            span(step),
            span(step * (1e6 / 3600 / entry["samples"])),
        ]

    head = ["run", "trained", "samples × tokens of a pack", "TFLOP", "checkpoint, of 4,096 pieces"]
    head += ["seconds on 8 H100", "GPU-hours for a million samples"]
    return table(head, map(row, known(entries)))


def clips_table(entries: Entries) -> str:
    """Nano on clips of other sizes."""

    def row(name: str) -> list[str]:
        entry = entries[name]
        step = cost(entry, Layout(**entry["layout"]), H100).step.total
        clip, _, _ = entry["data"].partition(", captions")
        return [
            clip.partition(" of ")[2],
            f"{entry['samples']} × {entry['tokens'] // entry['samples']:,}",
            figure(entry["hardware_flops"] / entry["samples"] / 1e12),
            f"{entry['attention_flops'] / entry['hardware_flops']:.0%}",
            span(step * (1 / entry["samples"])),
            span(step * (1e6 / entry["tokens"])),
        ]

    head = ["clips of Cosmos3-Nano", "clips × tokens of a pack", "TFLOP of a clip", "of it attention"]
    head += ["GPU-seconds of a clip", "of a million tokens"]
    return table(head, map(row, ["nano", *(name for name in CLIPS if name in entries)]))


def layout_table(entries: Entries) -> str:
    """Which layout for how many GPUs, H100 of 80 GB."""

    def row(name: str) -> list[str]:
        fits = [ranks for ranks in RANKS if best(entries[name], ranks, H100) is not None]
        simple = [ranks for ranks in fits if cut_everywhere(entries[name], ranks) < 0.05]
        costs = [cost(entries[name], layout, H100) for layout in layouts(4096)]
        fitting = [found for found in costs if MemoryVerdict(H100, found.peak, 4096).spare >= 0]
        quickest = min(found.step.total.slow for found in fitting)
        good = [found for found in fitting if found.step.total.slow < NEAR * quickest]
        return [
            title(name),
            str(fits[0]),
            f"{max(simple):,}",
            f"{good[-1].layout.weights} to {good[0].layout.weights}",
            f"{good[0].peak / GIB:.0f} to {good[-1].peak / GIB:.0f} GiB",
            f"{cut_everywhere(entries[name], 4096):.0%}",
        ]

    head = ["run", "fits from", "sharded over all: up to", "at 4,096: sharded over", "tensors at their peak"]
    return table([*head, "sharded over all 4,096: slower by"], map(row, known(entries)))


def cut_everywhere(entry: Mapping[str, Any], ranks: int) -> float:
    """How much longer a step takes where all ranks share one copy of the weights than in the best layout."""
    found = best(entry, ranks, H100)
    assert found is not None
    return cost(entry, layouts(ranks)[0], H100).step.total.slow / found.step.total.slow - 1


def tokens_table(entries: Entries) -> str:
    """Tokens of a GPU in a step at which sending takes as long as computing."""

    def even(entry: Mapping[str, Any], gpu: Gpu) -> str:
        found = best(entry, 512, gpu)
        if found is None:
            return "does not fit"
        return figure(entry["tokens"] * found.sending.middle / found.computing.middle)

    names = [name for name in known(entries) if "lora" not in name]
    rows = [[title(name), *(even(entries[name], gpu) for gpu in NETWORKS.values())] for name in names]
    return table(["run", *NETWORKS], rows)


def failure_table(entries: Entries) -> str:
    def row(name: str, ranks: int) -> list[str]:
        found = best(entries[name], ranks, H100)
        assert found is not None
        lost = failures(entries[name]["checkpoint_bytes"], found.layout)
        return [
            title(name),
            f"{ranks:,}",
            duration(lost.between),
            f"{lost.stall:.1f} s",
            duration(lost.write),
            duration(lost.optimum),
            f"{lost.lost(lost.optimum):.1%}",
            f"{lost.lost(3600):.1%}",
        ]

    rows = [row(name, ranks) for name in ("nano", "super") if name in entries for ranks in (64, 512, 4096)]
    head = [
        "run",
        "GPUs",
        "a failure every",
        "a save stops",
        "is written in",
        "best interval",
        "lost",
        "lost, saved hourly",
    ]
    return table(head, rows)


def duration(seconds: float) -> str:
    for size, word in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.2g} {word}"
    return f"{seconds:.2g} s"


def loader_table(entries: Entries) -> str:
    """What data take on each GPU and of all."""

    def row(name: str) -> list[str]:
        clips, cached, video = reading(entries, name, 512)
        return [
            title(name),
            f"{clips / 512:.2g}",
            f"{clips / 512 * FRAMES[name] / FRAMES_A_CORE:.2g}",
            f"{video / 1e9:.2g} GB/s",
            f"{cached / 1e9:.2g} GB/s",
            f"{entries[name]['cache_bytes'] / 1e6:.2g} MB",
        ]

    head = ["run", "clips a second of a GPU", "cores that decode, of a GPU", "512 GPUs read video", "or from the cache"]
    return table([*head, "a clip in the cache"], [row(name) for name in known(entries) if name in FRAMES])


def check_table(entries: Entries) -> str:
    """Simulated in other layouts, against the formulas from the step on 8 ranks."""

    def row(name: str) -> list[str]:
        entry = entries[name]
        base = entries[next(other for other in RUNS if RUNS[other].recipe == CHECKS[name].recipe)]
        found = cost(base, Layout(**entry["layout"]), H100)
        sent = sum(traffic["sent"] for traffic in entry["traffic"])
        peak = max(phase["peak"] for phase in entry["phases"])
        return [
            f"{name.partition(' ')[0].title()}, {Layout(**entry['layout'])}",
            f"{peak / GIB:.2f}, {found.peak / GIB:.2f} GiB",
            f"{sent / 1e9:.3f}, {sum(traffic.sent for traffic in found.work.traffic) / 1e9:.3f} GB",
            f"{entry['moved_bytes'] / 1e9:,.0f}, {found.work.moved_bytes / 1e9:,.0f} GB",
        ]

    names = [name for name in CHECKS if name in entries and CHECKS[name].context == 1]
    return table(["layout", "peak", "sent by a rank", "read and written by small operations"], map(row, names))


def strong_table(entries: Entries) -> str:
    """Steps of 512 packs."""

    def cells(name: str, ranks: int) -> str:
        found = shared(entries, name, ranks, 512)
        if found is None:
            return "-"
        seconds = found.step.total
        return f"{span(seconds)} s ({found.layout})"

    names = [name for name, batch in STRONG if batch == 512 and name in entries]
    rows = [[f"{ranks:,}", *(cells(name, ranks) for name in names)] for ranks in (8, 64, 512, 1024, 4096)]
    return table(["GPUs", *map(title, names)], rows)


def shared(entries: Entries, name: str, ranks: int, batch: int) -> Cost | None:
    """The best layout for a step of `batch` packs; neighbours share a pack where there are more GPUs than packs."""
    context = max(1, ranks // batch)
    entry = entries.get(name if context == 1 else f"{name}, context {context}")
    return None if entry is None else best(entry, ranks, H100, packs=batch * context // ranks)


def reading(entries: Entries, name: str, ranks: int) -> tuple[float, float, float]:
    """(clips, bytes of the latent cache, bytes of video) a second of all ranks, at the fast end of the step."""
    found = best(entries[name], ranks, H100)
    assert found is not None
    clips = found.work.samples * ranks / found.step.total.fast
    return clips, clips * entries[name]["cache_bytes"], clips * FRAMES[name] / 24 * SECOND_OF_VIDEO


TABLES: dict[str, Callable[[Entries], str]] = {
    "runs": runs_table,
    "clips": clips_table,
    "layouts": layout_table,
    "strong": strong_table,
    "tokens": tokens_table,
    "failures": failure_table,
    "loader": loader_table,
    "checks": check_table,
}
