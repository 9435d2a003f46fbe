"""Inputs of a simulation: substitutes of missing pretrained components, and real or dummy batches."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from worldsmith.config import Config
from worldsmith.config.errors import UserError
from worldsmith.data.stream.errors import DataError
from worldsmith.distributed.degrees import plan_degrees
from worldsmith.distributed.world import World
from worldsmith.files.remote import in_store
from worldsmith.models.model_files import (
    Contents,
    SubstituteComponent,
    cached,
    find_layout_without_download,
    hub_name,
    is_local,
)
from worldsmith.tasks.registry import task_of
from worldsmith.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Stated:
    """Config of a run for a simulation: missing pretrained components are replaced, and `assumptions` state which."""

    config: Any
    assumptions: list[str]
    """Texts on the substituted components, one per component."""
    reads_texts: bool
    """Whether the run's own tokenizer is available, so that captions have their real token counts."""


@contextmanager
def substitute_missing_components(config: Any) -> Iterator[Stated]:
    """Context manager: yields a copy of `config` in which missing pretrained components are substituted.

    A component whose files are neither in the given folder nor in the hub cache is replaced by a temporary folder with
    the config of the released component. No files are downloaded. The folders are deleted when the block ends.

    Args:
        config: Config with resolved references.
    """
    config, substitutes, reads_texts = deepcopy(config), [], True
    with tempfile.TemporaryDirectory(prefix="worldsmith-plan-") as folder:
        for number, (where, section) in enumerate(sections(config.model.config, "model.config")):
            part: SubstituteComponent | None = section.substitute()
            name = "" if part is None else getattr(section, part.field)
            why = find_missing_files(section, part) if part is not None and name else None
            if part is None or why is None:
                continue
            target = Path(folder) / str(number)
            write_files(target, part.contents)
            setattr(section, part.field, str(target))
            reads_texts &= not part.reads_texts
            substitutes.append(f"{where}.{part.field} = '{name}': {why}; substituted by {part.what}")
        yield Stated(config, substitutes, reads_texts)


def sections(section: Config, path: str) -> Iterator[tuple[str, Any]]:
    """Yields (dotted path, config section) for `section` and all nested sections that have a method `substitute`.

    These sections name files of a pretrained component. `path`: dotted path of `section`, such as "model.config".
    """
    if hasattr(section, "substitute"):
        yield path, section
    for field in fields(section):
        value = getattr(section, field.name)
        if isinstance(value, Config):
            yield from sections(value, f"{path}.{field.name}")


def find_missing_files(section: Any, part: SubstituteComponent) -> str | None:
    """Returns the reason why the pretrained files that a config section names are not available; None if they are.

    `section`: config section; `part`: its `substitute()`, which names the config field and the file patterns.
    """
    name = getattr(section, part.field)
    if is_local(name) or in_store(name):
        try:
            section.check_files()
            is_here = is_local(name) or find_layout_without_download(name, part.places, field=part.field) is not None
        except (OSError, ValueError, UserError) as error:
            return str(error)
        return None if is_here else "not on this machine"
    hub = hub_name(name)
    found = hub is not None and any(cached(hub, patterns) is not None for patterns in part.places)
    return None if found else "not on this machine"


def write_files(folder: Path, contents: Contents) -> None:
    """Writes the files of a substituted component into `folder`.

    `contents`: by file name, a path (written as a symbolic link), a mapping (as JSON) or None (as an empty file).
    """
    for name, content in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            file.symlink_to(content)
        else:
            file.write_text(json.dumps(content) if isinstance(content, Mapping) else "")


LOOKED_AT = 8
"""Number of batches at the start of the dataset from which the largest are selected."""


@dataclass(frozen=True, slots=True)
class PlannedBatches:
    """Batches of one step on one rank, for a simulation."""

    batches: Sequence[Any]
    """One list of samples per forward pass; tensors are expanded scalars, which take almost no memory."""
    described: str
    sample_bytes: int
    """Host RAM of the largest sample that a data loader yields, in bytes."""
    cache_bytes: int
    """Disk space of one sample in the latent cache, in bytes; 0: the run has no latent cache."""
    num_samples: int | None = None
    """Number of samples in the dataset; None: not known."""


def plan_batches(stated: Stated, *, ranks: int) -> PlannedBatches:
    """Returns batches for a simulation: the largest at the start of the dataset, or dummy ones if it cannot be read.

    Args:
        stated: Config of the run with substituted components.
        ranks: Number of ranks of the run.
    """
    task, data = task_for(stated.config, ranks), stated.config.dataloader_train
    why, path = "the run's tokenizer is not on this machine", str(getattr(data.dataset, "path", ""))
    if path.startswith("$"):
        why = f"{path} is not set"
    elif stated.reads_texts:
        try:
            return read_batches(stated.config, task)
        except (DataError, UserError, OSError, ValueError, ImportError) as error:
            why = str(error).partition("\n")[0]
    found = assumed_batches(stated.config, task)
    return replace(found, described=f"dummy data: {found.described} (the dataset was not read: {why})")


def assumed_batches(config: Any, task: Task | None = None, *, fill: float = 1.0) -> PlannedBatches:
    """Returns dummy batches for a simulation, without reading the dataset.

    Args:
        config: Config of the run.
        task: The run's task; None: built from `config`.
        fill: Size of the batches as a fraction of the config's limits.
    """
    task = task or task_for(config)
    dummy = task.dummy_data.make_batch(fill=fill, encoded=is_cached(config))
    count = config.trainer.grad_accum_iter
    each = f", in each of {count} batches of a step" if count > 1 else ""
    return planned(config, task, [list(dummy.samples)] * count, dummy.assumption + each)


def read_batches(config: Any, task: Task) -> PlannedBatches:
    """Returns the batches of one step: the largest at the start of the dataset, without decoded media."""
    loader = task.loader(dry=True)
    loader.maker.decodes = False
    count = config.trainer.grad_accum_iter
    packs = list(islice(loader, max(LOOKED_AT, count)))  # of an endless stream
    packs.sort(key=lambda pack: -sum(sample.num_tokens for sample in pack))
    encoded = is_cached(config)
    batches = [[task.dummy_data.fill_sample(sample, encoded=encoded) for sample in pack] for pack in packs[:count]]
    sizes = [task.size(pack) for pack in batches]
    samples, tokens = (sum(numbers) for numbers in zip(*sizes))
    described = (
        f"{samples:,} samples with {tokens:,} tokens, the largest of the first {len(packs)} batches of "
        f"{loader.dataset.name}"
    )
    return replace(planned(config, task, batches, described), num_samples=loader.dataset.num_samples)


def planned(config: Any, task: Task, batches: Sequence[Any], described: str) -> PlannedBatches:
    sizes = [task.dummy_data.sample_bytes(sample) for batch in batches for sample in batch]
    kept = max(disk for _, disk in sizes) if is_cached(config) else 0
    return PlannedBatches(batches, described, max(memory for memory, _ in sizes), kept)


def task_for(config: Any, ranks: int | None = None) -> Task:
    """Builds the task of a run, with its network on the meta device.

    Args:
        config: Config of the run.
        ranks: Number of ranks; the task is that of rank 0, with its shard of the data. None: a single rank.
    """
    model = config.model.config.build(device="meta")
    num_shards = 1 if ranks is None else ranks // plan_degrees(config.model.config.parallelism, ranks).context
    return task_of(config.model.name)(
        model=model, objective=config.objective, data=config.dataloader_train, world=World(size=num_shards)
    )


def is_cached(config: Any) -> bool:
    """Returns whether the training data of a run has a latent cache."""
    return bool(getattr(config.dataloader_train, "latent_cache", ""))


@contextmanager
def quietly() -> Iterator[None]:
    """Context manager: suppresses log records below the level ERROR."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
