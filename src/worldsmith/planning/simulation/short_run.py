"""`short_work`: what a step needs, from steps of fewer layers and fewer packs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from worldsmith.planning.simulation.simulated_run import different, measure, simulate, simulated_run
from worldsmith.planning.work import PhaseMemory, StepWork, Traffic

if TYPE_CHECKING:
    from worldsmith.models.model import Model
    from worldsmith.training.trainer import Trainer

LAYERS = 3
"""Of a list of layers: with fewer, what is gathered ahead is not yet as in the middle of many."""


def short_work(
    config: Trainer.Config,
    batches: Sequence[Any],
    *,
    ranks: int,
    all_layers: bool = False,
    phases: Collection[str] = (),
) -> tuple[StepWork, bool]:
    """As `simulate`: operations, traffic and moved bytes exactly, peaks at least; and whether no layer was left out.

    Each is a sum over layers, so two depths tell it for any. A peak is the largest of several such sums, which one
    being another matter in a deep network: it can be larger than said. With `all_layers` it is exact, and `phases` are
    carried out as by `simulate`. Batches with samples of the same sizes count as equal.
    """
    start = time.perf_counter()
    if len({tuple(sorted(sample.num_tokens for sample in batch)) for batch in batches}) == 1:
        batches = [batches[0]] * len(batches)
    lists, depth = ({}, 1) if all_layers else long_lists(config)
    least = depth - sum(length - LAYERS for length in lists.values())
    if all_layers or least + (least + 1) * len(lists) >= depth:
        return simulate(config, batches, ranks=ranks, phases=phases), True
    depths = dict.fromkeys(lists, LAYERS)
    work = shallow = shortened(config, batches, depths, ranks=ranks)
    for name, length in lists.items():
        deeper = shortened(config, batches, {**depths, name: LAYERS + 1}, ranks=ranks)
        work = plus(work, shallow, deeper, length - LAYERS)
    return replace(work, seconds=time.perf_counter() - start), False


def shortened(config: Trainer.Config, batches: Sequence[Any], depths: Mapping[str, int], *, ranks: int) -> StepWork:
    """A step of a network whose lists of layers have so many."""

    def shorten(model: Model) -> None:
        for name, depth in depths.items():
            del model.network.get_submodule(name)[depth:]  # type: ignore[operator]

    first, repeats = different(batches)
    with simulated_run(config, first, ranks=ranks, prepare=shorten) as run:
        return measure(run, start=time.perf_counter(), repeats=repeats)


def long_lists(config: Trainer.Config) -> tuple[dict[str, int], int]:
    """Lists of the network's repeated layers that can be shortened, with their lengths; and the number of all layers.

    Those that are never compiled, such as a tower before the network, may be read at certain layers, and stay.
    """
    model: Model = config.model.config.build(device="meta")
    parts = model.parts()
    layers = set(parts.layers) - set(parts.uncompiled)
    lists = {
        name: len(module)
        for name, module in model.network.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) > LAYERS + 1 and layers.issuperset(module)
    }
    return lists, len(parts.layers)


def plus(work: StepWork, shallow: StepWork, deeper: StepWork, times: int) -> StepWork:
    """`work` with what `deeper` has more than `shallow`, so many times."""
    return combined([work, shallow, deeper], lambda a, b, c: a + (c - b) * times)


def combined(works: Sequence[StepWork], join: Callable[..., int]) -> StepWork:
    """Each figure joined from those of all works; their collectives and phases are of the same kinds."""
    first, phases, traffic = works[0], [], []
    for phase in first.phases:
        alike = [next(other for other in work.phases if other.name == phase.name) for work in works]
        kinds = {
            kind: join(*(other.kinds.get(kind, 0) for other in alike))
            for kind in {kind: None for other in alike for kind in other.kinds}
        }
        peak, beside = (join(*(getattr(other, name) for other in alike)) for name in ("peak", "main_memory"))
        phases.append(PhaseMemory(phase.name, peak, kinds, phase.modules, beside))
    for sent in first.traffic:
        same = [find_traffic(work, sent) for work in works]
        calls, payload = (join(*(getattr(other, name) for other in same)) for name in ("calls", "payload"))
        traffic.append(replace(sent, calls=calls, payload=payload))
    counted = ("model_flops", "hardware_flops", "attention_flops", "skipped_flops", "moved_bytes", "samples", "tokens")
    sums = {name: join(*(getattr(work, name) for work in works)) for name in counted}
    return replace(first, phases=phases, traffic=traffic, **sums)


def find_traffic(work: StepWork, wanted: Traffic) -> Traffic:
    same = (t for t in work.traffic if (t.op, t.group, t.ranks) == (wanted.op, wanted.group, wanted.ranks))
    return next(same)
