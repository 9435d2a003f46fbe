"""The pictures of docs/scale.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from line_chart import Line, Panel, draw
from scale_figures import best, failures
from scale_tables import H100, NETWORKS, RANKS, STRONG, Entries, known, reading, shared, title

from worldsmith.distributed.gpus import Gpu
from worldsmith.planning.estimate_time import EFFICIENCIES

TICKS = [(ranks, f"{ranks:,}") for ranks in RANKS[::2]] + [(4096, "4,096")]


def scaling(entries: Entries) -> str:
    """Weak and strong."""

    def weak(name: str) -> list[tuple[float, float]]:
        found = [(ranks, best(entries[name], ranks, H100)) for ranks in RANKS]
        return [(ranks, 100 * cost.efficiency) for ranks, cost in found if cost is not None]

    names = [name for name in known(entries) if name not in ("edge-lora", "nano-lora")]
    shares = Panel(
        "The same batch on each GPU",
        "GPUs (H100, 400 Gb/s each)",
        "% of a step in which there is computation",
        TICKS,
        [(value, str(value)) for value in (90, 92, 94, 96, 98, 100)],
        [Line(title(name), weak(name), "lora" in name) for name in names],
        log_y=False,
    )
    lines = [Line(f"{title(name)}, {batch}", strong(entries, name, batch)) for name, batch in STRONG if name in entries]
    ticks = [(value, str(value)) for value in (100, 120, 140, 160, 180)]
    hours = Panel(
        "The same batch in all (its packs)",
        "GPUs",
        "GPU-hours of a step, % of the fewest",
        TICKS,
        ticks,
        lines,
        log_y=False,
    )
    return draw([shares, hours])


def strong(entries: Entries, name: str, batch: int) -> list[tuple[float, float]]:
    """GPU-hours of a step of `batch` packs, in per cent of the fewest."""
    steps = [(ranks, shared(entries, name, ranks, batch)) for ranks in RANKS]
    hours = [(ranks, ranks * step.step.total.middle) for ranks, step in steps if step is not None]
    least = min(count for _, count in hours)
    return [(ranks, 100 * count / least) for ranks, count in hours]


def sending(entries: Entries) -> str:
    def ratio(entry: Mapping[str, Any], gpu: Gpu) -> list[tuple[float, float]]:
        found = [(ranks, best(entry, ranks, gpu)) for ranks in RANKS]
        return [(ranks, cost.sending.middle / cost.computing.middle) for ranks, cost in found if cost is not None]

    ticks = [(value, f"{value:g}") for value in (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3)]
    even = [(1.0, "as long as the computation")]
    names = [name for name in ("edge", "nano", "super", "wan-14b", "qwen3-vl-8b", "super-lora") if name in entries]
    words = "sending over computing, one pack on each GPU"
    machines = [Line(name, ratio(entries["nano"], gpu), "a machine" in name) for name, gpu in NETWORKS.items()]
    runs = [Line(title(name), ratio(entries[name], H100), "lora" in name) for name in names]
    return draw(
        [
            Panel("Cosmos3-Nano on several machines", "GPUs", words, TICKS, ticks, machines, rules=even),
            Panel("Several runs on H100, 400 Gb/s each", "GPUs", words, TICKS, ticks, runs, rules=even),
        ]
    )


def failing(entries: Entries) -> str:
    minutes = [1, 2, 5, 10, 20, 60, 120, 300, 600]
    ticks = [(value, f"{value:g}") for value in (0.03, 0.1, 0.3, 1, 3, 10, 30, 100)]

    def line(name: str, ranks: int) -> Line:
        found = best(entries[name], ranks, H100)
        assert found is not None
        lost = failures(entries[name]["checkpoint_bytes"], found.layout)
        times = [lost.write * 1.15**power for power in range(60) if lost.write * 1.15**power <= 36000]
        points = [(time / 60, 100 * lost.lost(time)) for time in times]
        return Line(f"{ranks:,} GPUs", points, mark=(lost.optimum / 60, 100 * lost.lost(lost.optimum)))

    def panel(name: str) -> Panel:
        size = f"{entries[name]['checkpoint_bytes'] / 1e9:,.0f} GB"
        x_ticks = [(value, str(value)) for value in minutes]
        lines = [line(name, ranks) for ranks in (64, 512, 4096)]
        return Panel(
            f"{title(name)}, {size} a checkpoint",
            "minutes between saves (dots: the best)",
            "% of the time lost",
            x_ticks,
            ticks,
            lines,
        )

    return draw([panel(name) for name in ("nano", "super") if name in entries])


def storing(entries: Entries) -> str:
    ticks = [(value, f"{value:g}") for value in (0.001, 0.01, 0.1, 1, 10, 100)]
    disk = EFFICIENCIES["disk"][0]

    def saving(name: str) -> list[tuple[float, float]]:
        found = []
        for ranks in RANKS:
            layout = best(entries[name], ranks, H100)
            if layout is not None:
                lost = failures(entries[name]["checkpoint_bytes"], layout.layout)
                found.append((ranks, entries[name]["checkpoint_bytes"] / lost.optimum / 1e9))
        return found

    def read(name: str, place: int) -> list[tuple[float, float]]:
        fits = [ranks for ranks in RANKS if best(entries[name], ranks, H100) is not None]
        return [(ranks, reading(entries, name, ranks)[place] / 1e9) for ranks in fits]

    names = [name for name in ("nano", "super", "wan-14b", "cogvideox-5b") if name in entries]
    loads = [Line(f"{title(name)}, cache", read(name, 1)) for name in names]
    loads += [Line(f"{title(name)}, video", read(name, 2), dashed=True) for name in names[:1]]
    saves = [Line(title(name), saving(name)) for name in (*names, "edge") if name in entries]
    band = (disk.slow / 1e9, disk.fast / 1e9, "assumed of the storage, when it is written")
    return draw(
        [
            Panel("Read by all loaders", "GPUs (H100)", "GB a second", TICKS, ticks, loads),
            Panel("Written at the best interval", "GPUs (H100)", "GB a second, mean", TICKS, ticks, saves, band=band),
        ]
    )


PICTURES: dict[str, Callable[[Entries], str]] = {
    "steps": scaling,
    "network": sending,
    "failures": failing,
    "storage": storing,
}
