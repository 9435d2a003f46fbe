"""`short_work`: extrapolates a training step from simulated steps with fewer layers."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from worldsmith.models.model import Model
from worldsmith.planning.simulation.phase_peaks import Timeline, deeper_peaks, weighted_sum
from worldsmith.planning.simulation.simulate import Encodings, simulate
from worldsmith.planning.work import StepWork, Traffic
from worldsmith.training.trainer import Trainer

COUNTS = ("num_hidden_layers", "num_layers", "num_single_layers", "depth")
"""Config fields of networks that state the number of repeated layers."""
LAYERS = 3
"""Number of layers to simulate in each list of equal layers (`ModuleList`); with fewer, FSDP prefetching would differ
from that in a deep network."""
LAYERS_AFTER_TOWER = 5
"""Number of layers to simulate if outputs of a vision tower are added to the first three layers."""
COUNTED = ("model_flops", "hardware_flops", "attention_flops", "skipped_flops", "moved_bytes", "samples", "tokens",
           "to_device_bytes", "to_host_bytes", "activation_copy_bytes")  # fmt: skip


def short_work(
    config: Trainer.Config,
    batches: Sequence[Any],
    *,
    ranks: int,
    phases: Collection[str] = (),
    encodings: Encodings | None = None,
    lists: Mapping[str, int] | None = None,
) -> StepWork:
    """Simulates one optimizer step with fewer layers, and extrapolates memory, communication and FLOPs to all layers.

    Each list of layers is simulated with two depths. FLOPs, communication and moved bytes are exact, since they are
    sums over layers. The peak memory of the step is exact too if a matching moment exists in both depths; peaks of
    other phases are lower bounds. Batches whose samples have the same token counts are treated as equal.

    Args:
        config: Config with resolved references.
        batches: Batches of the step.
        ranks: Number of ranks of the run.
        phases: Other phases to simulate: "loading", "encoding", "validation", "sampling", "saving".
        encodings: Cache of the results of encoding phases, by clip sizes, for several calls; extended in place.
            None: no cache.
        lists: Number of layers by list, as from `repeated_layer_lists`; None: computed from `config`.
    """
    start = time.perf_counter()
    batches = repeat_if_equal(batches)
    lists = repeated_layer_lists(config) if lists is None else lists
    timelines: list[Timeline] = []
    given: dict[str, Any] = {"ranks": ranks, "phases": phases, "encodings": encodings, "timelines": timelines}
    if not lists:
        return simulate(config, batches, **given)

    least = min_simulated_layers(lists)

    def of_depths(depths: Mapping[str, int]) -> StepWork:
        found = {**dict.fromkeys(lists, least), **depths}
        short = with_layers(config, found)
        if short is not None:
            return simulate(short, batches, **given)
        return simulate(config, batches, prepare=partial(drop_layers, depths=found), **given)

    work = shallow = of_depths({})
    for name, length in lists.items():
        work = add_difference(work, shallow, of_depths({name: least + 1}), length - least)
    base, *others = timelines
    peaks = deeper_peaks(base, dict(zip(others, (length - least for length in lists.values()), strict=True)))
    phases_found = [max(phase, peaks.get(phase.name, phase), key=lambda phase: phase.peak) for phase in work.phases]
    return replace(work, phases=phases_found, seconds=time.perf_counter() - start)


def repeat_if_equal(batches: Sequence[Any]) -> Sequence[Any]:
    """Returns the first batch, repeated, if the samples of all batches have the same token counts; else `batches`."""
    same = len({tuple(sorted(sample.num_tokens for sample in batch)) for batch in batches}) == 1
    return [batches[0]] * len(batches) if same else batches


def drop_layers(model: Model, depths: Mapping[str, int]) -> None:
    """Truncates lists of layers in place: `depths` maps module names to the number of layers to keep."""
    for name, depth in depths.items():
        del model.network.get_submodule(name)[depth:]  # type: ignore[operator]


def with_layers(config: Trainer.Config, depths: Mapping[str, int]) -> Trainer.Config | None:
    """Returns a copy of the config with other numbers of layers.

    Args:
        config: Config of the run.
        depths: Number of layers by field name of the network's config.

    Returns:
        The copy; None if the network's config lacks one of the fields.
    """
    network = getattr(config.model.config, "network", None)
    if network is None or not all(hasattr(network, name) for name in depths):
        return None
    section: Any = config.model.config
    model = replace(section, network=replace(network, **depths))
    return replace(config, model=replace(config.model, config=model))


def repeated_layer_lists(config: Trainer.Config) -> dict[str, int]:
    """Returns the lists of repeated layers that are worth shortening for a simulation, with their lengths.

    Args:
        config: Config of the run.

    Returns:
        Number of layers by config field, such as `num_layers`, or by module name if the config has no such field or
        other fields depend on it; {} if shortening would not save time. Layers that are never compiled, such as those
        of a vision tower, are not shortened, because outputs of certain layers can be used elsewhere.
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
    least = depth - sum(length - min_simulated_layers(lists) for length in lists.values())
    return lists if least + (least + 1) * len(lists) < depth else {}


def min_simulated_layers(lists: Mapping[str, int]) -> int:
    """Returns the min number of layers to keep in each list, from which more layers can be extrapolated.

    Args:
        lists: Number of layers by config field or module name, as from `repeated_layer_lists`.
    """
    return LAYERS_AFTER_TOWER if any(name not in COUNTS for name in lists) else LAYERS


def can_be_built(config: Trainer.Config | None) -> bool:
    """Returns whether a shortened config is valid, which is not the case if another field has one entry per layer."""
    try:
        return config is not None and config.model.config.build(device="meta") is not None
    except ValueError:
        return False


def add_difference(work: StepWork, shallow: StepWork, deeper: StepWork, times: int) -> StepWork:
    """Returns `work` extrapolated by `times` layers: `work` plus `times` · (`deeper` - `shallow`).

    `deeper` has one more layer than `shallow`. All three must have the same phases and the same collectives.
    """

    def add(name: str, *works: Any) -> int:
        own, less, more = (getattr(one, name) for one in works)
        return int(own + (more - less) * times)

    phases = []
    for phase in work.phases:
        same = (next(found for found in other.phases if found.name == phase.name) for other in (shallow, deeper))
        phases.append(weighted_sum([phase, *same], [1, -times, times]))
    traffic = []
    for sent in work.traffic:
        all_sent = sent, find_traffic(shallow, sent), find_traffic(deeper, sent)
        traffic.append(replace(sent, calls=add("calls", *all_sent), payload=add("payload", *all_sent)))
    sums: dict[str, Any] = {name: add(name, work, shallow, deeper) for name in COUNTED}
    return replace(work, phases=phases, traffic=traffic, **sums)


def interpolate(kept: StepWork, recomputed: StepWork, fraction: float) -> StepWork:
    """Returns the approximate work of a step in which only a fraction of the layers has its mode of recomputation.

    Peaks are estimated as if they were at the same moment of the step with any number of recomputed layers.

    Args:
        kept: Step in which all layers have the mode of the other layers.
        recomputed: Step in which all layers have the mode of the fraction, with the same phases.
        fraction: Fraction of the layers.
    """
    share = round(100 * fraction)

    def mix(own: int, other: int) -> int:
        return ((100 - share) * own + share * other) // 100

    phases = []
    for own, other in zip(kept.phases, recomputed.phases, strict=True):
        kinds = {name: mix(own.kinds.get(name, 0), other.kinds.get(name, 0)) for name in {**own.kinds, **other.kinds}}
        phases.append(replace(own, peak=mix(own.peak, other.peak), kinds=kinds))
    sums: dict[str, Any] = {name: mix(getattr(kept, name), getattr(recomputed, name)) for name in COUNTED}
    return replace(recomputed, phases=phases, **sums)


def find_traffic(work: StepWork, wanted: Traffic) -> Traffic:
    same = (t for t in work.traffic if (t.op, t.group, t.ranks) == (wanted.op, wanted.group, wanted.ranks))
    return next(same)
