"""`short_work`: what a step needs, from steps of fewer layers and fewer packs."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from worldsmith.planning.simulation.phase_peaks import Timeline, deeper_peaks, sum_of
from worldsmith.planning.simulation.simulate import Encodings, simulate
from worldsmith.planning.work import StepWork, Traffic

if TYPE_CHECKING:
    from worldsmith.models.model import Model
    from worldsmith.training.trainer import Trainer

COUNTS = ("num_hidden_layers", "num_layers", "num_single_layers", "depth")
"""What networks call the number of their repeated layers."""
LAYERS = 3
"""Of a list of layers: with fewer, what is gathered ahead is not yet as in the middle of many."""
LAYERS_AFTER_TOWER = 5
"""Of those that follow a tower, which adds to the first three of them."""
COUNTED = ("model_flops", "hardware_flops", "attention_flops", "skipped_flops", "moved_bytes", "samples", "tokens")


def short_work(
    config: Trainer.Config,
    batches: Sequence[Any],
    *,
    ranks: int,
    phases: Collection[str] = (),
    encodings: Encodings | None = None,
    lists: Mapping[str, int] | None = None,
) -> StepWork:
    """As `simulate`: operations, traffic and moved bytes exactly, peaks at least.

    Each is a sum over layers, so two depths tell it for any. A peak is the largest of several such sums: for a step of
    those of all its moments, for another phase of the peak alone, so that this one can be larger in a deep network.
    Batches with samples of the same sizes count as equal. `lists`: those of `long_lists`, where they are known.
    """
    start = time.perf_counter()
    batches = as_equal(batches)
    lists = long_lists(config) if lists is None else lists
    timelines: list[Timeline] = []
    given: dict[str, Any] = {"ranks": ranks, "phases": phases, "encodings": encodings, "timelines": timelines}
    if not lists:
        return simulate(config, batches, **given)

    least = least_layers(lists)

    def of_depths(depths: Mapping[str, int]) -> StepWork:
        found = {**dict.fromkeys(lists, least), **depths}
        short = with_layers(config, found)
        if short is not None:
            return simulate(short, batches, **given)
        return simulate(config, batches, prepare=partial(drop_layers, depths=found), **given)

    work = shallow = of_depths({})
    for name, length in lists.items():
        work = plus(work, shallow, of_depths({name: least + 1}), length - least)
    base, *others = timelines
    peaks = deeper_peaks(base, dict(zip(others, (length - least for length in lists.values()), strict=True)))
    phases_found = [max(phase, peaks.get(phase.name, phase), key=lambda phase: phase.peak) for phase in work.phases]
    return replace(work, phases=phases_found, seconds=time.perf_counter() - start)


def as_equal(batches: Sequence[Any]) -> Sequence[Any]:
    """Batches with samples of the same sizes, as one batch that is repeated."""
    same = len({tuple(sorted(sample.num_tokens for sample in batch)) for batch in batches}) == 1
    return [batches[0]] * len(batches) if same else batches


def drop_layers(model: Model, depths: Mapping[str, int]) -> None:
    """Leaves so many layers in lists of the network."""
    for name, depth in depths.items():
        del model.network.get_submodule(name)[depth:]  # type: ignore[operator]


def with_layers(config: Trainer.Config, depths: Mapping[str, int]) -> Trainer.Config | None:
    """The run whose network has so many layers, where its config states their numbers; None where it does not."""
    network = getattr(config.model.config, "network", None)
    if network is None or not all(hasattr(network, name) for name in depths):
        return None
    section: Any = config.model.config
    model = replace(section, network=replace(network, **depths))
    return replace(config, model=replace(config.model, config=model))


def long_lists(config: Trainer.Config) -> dict[str, int]:
    """Lists of the network's repeated layers that are worth shortening, with their lengths.

    They are named by the fields of the network's config that state these lengths, else as modules: those that are
    never compiled, such as a tower before the network, may be read at certain layers, and stay.
    """
    network = getattr(config.model.config, "network", None)
    counts = {name: getattr(network, name) for name in COUNTS if hasattr(network, name)}
    lists = {name: length for name, length in counts.items() if length > LAYERS + 1}
    depth = sum(counts.values())
    if not counts or not can_be_built(with_layers(config, dict.fromkeys(lists, LAYERS))):
        model: Model = config.model.config.build(device="meta")
        parts = model.parts()
        layers, depth = set(parts.layers) - set(parts.uncompiled), len(parts.layers)
        lists = {
            name: len(module)
            for name, module in model.network.named_modules()
            if isinstance(module, nn.ModuleList) and len(module) > LAYERS_AFTER_TOWER and layers.issuperset(module)
        }
    least = depth - sum(length - least_layers(lists) for length in lists.values())
    return lists if least + (least + 1) * len(lists) < depth else {}


def least_layers(lists: Mapping[str, int]) -> int:
    """Layers of each of these lists that tell of all."""
    return LAYERS_AFTER_TOWER if any(name not in COUNTS for name in lists) else LAYERS


def can_be_built(config: Trainer.Config | None) -> bool:
    """Whether nothing else in the config is about each of the layers."""
    try:
        return config is not None and config.model.config.build(device="meta") is not None
    except ValueError:
        return False


def plus(work: StepWork, shallow: StepWork, deeper: StepWork, times: int) -> StepWork:
    """`work` with what `deeper` has more than `shallow`, so many times; their phases and collectives are the same."""

    def add(name: str, *of: Any) -> int:
        own, less, more = (getattr(one, name) for one in of)
        return int(own + (more - less) * times)

    phases = []
    for phase in work.phases:
        same = (next(found for found in of.phases if found.name == phase.name) for of in (shallow, deeper))
        phases.append(sum_of([phase, *same], [1, -times, times]))
    traffic = []
    for sent in work.traffic:
        all_sent = sent, find_traffic(shallow, sent), find_traffic(deeper, sent)
        traffic.append(replace(sent, calls=add("calls", *all_sent), payload=add("payload", *all_sent)))
    sums: dict[str, Any] = {name: add(name, work, shallow, deeper) for name in COUNTED}
    return replace(work, phases=phases, traffic=traffic, **sums)


def find_traffic(work: StepWork, wanted: Traffic) -> Traffic:
    same = (t for t in work.traffic if (t.op, t.group, t.ranks) == (wanted.op, wanted.group, wanted.ranks))
    return next(same)
