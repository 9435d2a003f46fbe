"""`rehearse`: simulates the first actions of a run with many ranks on one machine, without allocating memory."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from worldsmith.config import WrongValueError
from worldsmith.distributed.degrees import Degrees, plan_degrees
from worldsmith.files.json_file import read_json_object
from worldsmith.files.remote import in_store
from worldsmith.files.remote_folder import fetch_folder
from worldsmith.planning.plan import least_ranks, quick_plan
from worldsmith.planning.plan_text import size, wrap_row
from worldsmith.planning.simulation.short_run import COUNTS
from worldsmith.planning.simulation_inputs import quietly, substitute_missing_components
from worldsmith.tools.rehearse.check_exports import Exports, rehearse_exports
from worldsmith.tools.rehearse.compare_ranks import (
    check_save,
    compare_traces,
    compare_weights,
    format_collectives,
    format_ranks,
    join_plans,
)
from worldsmith.tools.rehearse.rank_run import (
    Finding,
    RankRecord,
    RankSimulator,
    record_rank,
    resume_rank,
    write_layout,
)
from worldsmith.training.trainer import Trainer

MOST = 16
"""Max world size at which every rank is simulated."""
USUAL = 8
LAYERS = 2
"""Number of simulated layers in each list of repeated layers."""
SELECTED = "deepstack_visual_indexes"
"""Config key of the vision encoder layers whose outputs are added in the first layers of the language model."""
WHOLE = "fullatt_block_indexes"
"""Config key of the vision encoder layers with attention over a full frame instead of windows."""
CONFIG = "config.json"


@dataclass(slots=True)
class Rehearsal:
    """Result of `worldsmith train --rehearse`: problems, records of the simulated ranks, and export checks."""

    ranks: int
    degrees: Degrees | None = None
    findings: list[Finding] = field(default_factory=list)
    rehearsed: Sequence[int] = ()
    layers: str = ""
    records: Sequence[RankRecord] = ()
    resumed: Sequence[int] = ()
    """World sizes with which the resume from the checkpoint was simulated."""
    checkpoint_bytes: int = 0
    """Size of a checkpoint of the full network in bytes, computed from the config."""
    assumptions: Sequence[str] = ()
    """Descriptions of substitutes for components that are not available."""
    exports: Exports = field(default_factory=Exports)
    seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether all ranks were simulated."""
        return len(self.rehearsed) == self.ranks

    def lines(self) -> Iterator[str]:
        """Yields the output lines: the problems, or a summary if no problems were found."""
        if self.findings:
            yield f"{len(self.findings)} problem{'s' * (len(self.findings) > 1)} on {self.ranks} ranks:"
            for finding in self.findings:
                yield from wrap_row("", str(finding), first=2)
            return
        some = "all" if self.is_whole else ", ".join(map(str, self.rehearsed))
        first = self.records[0]
        yield "found        no problems"
        yield from wrap_row("ranks", f"{self.ranks} ({self.degrees}), simulated: {some}{self.layers}")
        trained = sum(weight.trained for weight in first.weights.values())
        weights = f"{len(first.weights):,} weights, {trained:,} trained"
        yield from wrap_row(
            "first step", f"{format_collectives(len(first.trace))} per step, the same on all ranks; {weights}"
        )
        tensors = sum(
            len({item.index.fqn for r in self.records for item in r.plans[part].items}) for part in first.plans
        )
        of_these = " of this shortened network" if self.layers else ""
        whole = f"a checkpoint of the run takes {size(self.checkpoint_bytes)}"
        yield from wrap_row("save", f"{tensors:,} tensors{of_these}, each element once; {whole}")
        yield from wrap_row("resume", f"on {', '.join(map(str, self.resumed))} ranks")
        refused = {name: f"not for this model: {why}" for name, why in self.exports.refused.items()}
        for name, words in (self.exports.written | refused).items():
            yield from wrap_row("export", f"{name}: {words}")
        for assumption in self.assumptions:
            yield from wrap_row("assumed", assumption)
        yield f"seconds      {self.seconds:.1f}"
        yield from wrap_row("not covered", "torch.compile, GPU kernels, memory, the data, values of tensors")


def rehearse(config: Trainer.Config, ranks: int, *, layers: int | None = LAYERS) -> Rehearsal:
    """Simulates the first step, a save, a resume and the exports of a run, without a GPU, weights or data.

    Args:
        config: Resolved config of the run.
        ranks: World size.
        layers: Number of layers in each list of repeated layers in the simulated steps; None: all. The exports are
            checked with the full network.

    Returns:
        The problems that were found, with the records of the simulated ranks.
    """
    start, done = time.perf_counter(), Rehearsal(ranks)
    try:
        done.degrees = degrees = plan_degrees(config.model.config.parallelism, ranks)
    except WrongValueError as error:
        done.findings.append(Finding("degrees", str(error)))
        return done
    done.rehearsed = choose_ranks(ranks, degrees)
    with tempfile.TemporaryDirectory() as folder, substitute_missing_components(config) as stated, quietly():
        config, place, done.assumptions = stated.config, Path(folder), stated.assumptions
        short = config if layers is None else reduce_layers(config, layers, place)
        done.layers = "" if short is config else f"; repeated layers cut to {layers}"
        simulator = RankSimulator(short, place)
        done.records = records = [record_rank(simulator, rank, ranks) for rank in done.rehearsed]
        done.findings += compare_weights(records, degrees.weights)
        done.findings += find_errors(records)
        done.findings += compare_traces([record for record in records if not record.error])
        if not any(record.error for record in records):
            done.checkpoint_bytes = quick_plan(config, ranks).checkpoint_bytes
            saved = list(check_save(records, shares=degrees.weights, all_ranks=done.is_whole))
            done.findings += saved or rehearse_resume(simulator, done)
        if any(record.weights for record in records):
            done.exports = rehearse_exports(config)
            done.findings += done.exports.findings
    done.seconds = time.perf_counter() - start
    return done


def find_errors(records: Sequence[RankRecord]) -> list[Finding]:
    """Returns one finding for each distinct error that ended the simulation of one or more ranks."""
    ranks: dict[str, list[int]] = {}
    for record in records:
        if record.error:
            ranks.setdefault(record.error, []).append(record.rank)
    return [
        Finding("first step", f"rank{'s' * (len(those) > 1)} {format_ranks(those)}: {error}")
        for error, those in ranks.items()
    ]


def rehearse_resume(simulator: RankSimulator, done: Rehearsal) -> Iterator[Finding]:
    """Simulates a resume with the same world size, with half of it and with one rank, and yields the problems.

    `done` is the result so far, in which the tested world sizes are stored.
    """
    try:
        metadata = join_plans(done.records, all_ranks=done.is_whole)
    except (ValueError, AssertionError) as error:
        yield Finding("save", f"torch.distributed.checkpoint rejects the plan: {error}")
        return
    assert done.degrees is not None
    checkpoint = write_layout(simulator.folder, metadata, done.records[0].texts, done.degrees.data)
    # Another world size would read shards of ranks that were not simulated.
    numbers = dict.fromkeys((done.ranks, done.ranks // 2, 1) if done.is_whole else (done.ranks,))
    done.resumed = [number for number in numbers if number and number % done.degrees.context == 0]
    for number in done.resumed:
        readers = (
            simulator if number == done.ranks else RankSimulator(with_open_degrees(simulator.config), simulator.folder)
        )
        for complaint in resume_rank(readers, number - 1, number, checkpoint):
            yield Finding("resume", f"on {number} ranks, rank {number - 1}: {complaint}")


def with_open_degrees(config: Trainer.Config) -> Trainer.Config:
    """Returns a copy of the config whose parallelism degrees fit any world size: weights sharded over all ranks."""
    config = deepcopy(config)
    parallelism = config.model.config.parallelism
    parallelism.data_parallel_shard_degree, parallelism.data_parallel_replicate_degree = -1, 1
    return config


def default_world_size(config: Trainer.Config) -> int:
    """Returns the world size that the parallelism degrees of a run require.

    If a data-parallel degree is -1 (any size), returns the smallest valid world size of at least 8.
    """
    asked, least = config.model.config.parallelism, least_ranks(config)
    is_open = min(asked.data_parallel_shard_degree, asked.data_parallel_replicate_degree) <= 0
    return least * -(-USUAL // least) if is_open else least


def choose_ranks(ranks: int, degrees: Degrees) -> list[int]:
    """Returns the ranks to simulate: all, or above a world size of 16 the first, last and those at group boundaries.

    `degrees` are the parallelism degrees, which determine the groups.
    """
    if ranks <= MOST:
        return list(range(ranks))
    borders = {0, 1, ranks - 2, ranks - 1}
    for group in (degrees.context, degrees.weights, degrees.shard):
        borders |= {group - 1, group, ranks - group - 1, ranks - group}
    return sorted(rank for rank in borders if 0 <= rank < ranks)


def reduce_layers(config: Trainer.Config, layers: int, folder: Path) -> Trainer.Config:
    """Returns a copy of the config whose network has at most `layers` layers in each list of repeated layers.

    A network that requires more layers keeps as many as it requires. If a model folder describes the network, a copy of
    its small files with fewer layers is written into `folder`, and the new config refers to it. If the network does not
    become smaller, `config` itself is returned.
    """
    short: Any = deepcopy(config)
    model = short.model.config
    if hasattr(model, "network"):
        counts = {name: getattr(model.network, name) for name in COUNTS if hasattr(model.network, name)}
        for name, number in counts.items():
            setattr(model.network, name, min(number, layers))
        return short if any(number > layers for number in counts.values()) else config  # type: ignore[no-any-return]
    for key, name, patterns in model.named_folders():
        source = fetch_folder(name, (patterns,), field=key) if in_store(name) else Path(name)
        if source is None or not (source / CONFIG).is_file():
            continue
        described = read_json_object(source / CONFIG)
        fewer = reduce_config_layers(described, layers)
        if fewer != described:
            path, _, leaf = key.removeprefix("model.config.").rpartition(".")
            setattr(attrgetter(path)(model), leaf, str(copy_model_folder(source, folder / "shallow", fewer)))
            return short  # type: ignore[no-any-return]
    return config


def reduce_config_layers(described: dict[str, Any], layers: int) -> dict[str, Any]:
    """Returns a copy of a transformers config (`described`) with at most `layers` layers per list of repeated layers.

    More layers are kept if the vision encoder has more outputs that are added in the language model.
    """
    layers = max(layers, len((described.get("vision_config") or {}).get(SELECTED) or ()))

    def cut(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(key, part) for key, part in value.items()}
        if name in COUNTS and isinstance(value, int):
            return min(value, layers)
        if name == SELECTED and value:
            return list(range(len(value)))
        if name == WHOLE and value:
            return sorted({min(index, layers - 1) for index in value})
        return value[:layers] if name == "layer_types" and isinstance(value, list) else value

    return {name: cut(name, value) for name, value in described.items()}


def copy_model_folder(source: Path, target: Path, described: dict[str, Any]) -> Path:
    """Copies the small files of the model folder `source` to the new folder `target`, with `described` as config.json.

    Small files are those that end in .json, .jinja, .txt or .model. Returns `target`.
    """
    target.mkdir()
    for file in source.iterdir():
        if file.is_file() and file.suffix in (".json", ".jinja", ".txt", ".model") and file.name != CONFIG:
            shutil.copyfile(file, target / file.name)
    (target / CONFIG).write_text(json.dumps(described), encoding="utf-8")
    return target
