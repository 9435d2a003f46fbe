"""Where a run lives and what it says about itself: `<output root>/<project>/<group>/<name>/`."""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.sources.stored_config import with_classes_of, written_here
from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.text_file import read_config_text
from worldsmith.config.tree.plain import to_dict, to_yaml
from worldsmith.config.tree.reader import from_dict, from_yaml
from worldsmith.config.yaml.text import read_yaml
from worldsmith.files.atomic import write_text

if TYPE_CHECKING:
    from worldsmith.config.sections import JobConfig
    from worldsmith.data.stream.loader import PackingDataLoader
    from worldsmith.distributed.world import World
    from worldsmith.tasks.task import Task
    from worldsmith.training.run_config import RunConfig

ROOT_VARIABLES = ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT")
DEFAULT_ROOT = "outputs/train"
START_VARIABLE = "WORLDSMITH_RUN_NAME"
"""Name of a run without one, from `worldsmith launch`: its restarts resume the run that it started."""

logger = logging.getLogger(__name__)

FREE_TO_CHANGE = (
    "job.folder",
    "job.resume_newest",
    "trainer.max_iter",
    "trainer.logging_iter",
    "trainer.run_validation",
    "trainer.validation_iter",
    "trainer.max_val_iter",
    "trainer.run_validation_on_start",
    "trainer.early_stop_patience",
    "trainer.max_consecutive_skipped",
    *(
        f"trainer.callbacks.{name}"
        for name in (
            *("iter_speed", "heart_beat", "first_step_watchdog", "param_count", "DeviceMonitor", "norm_monitor"),
            *("bad_batches", "manual_gc", "profiler", "metrics", "plan", "run_page", "EveryNDrawSample"),
        )
    ),
    "checkpoint",
    "job.wandb_mode",
    "dataloader_val",
    "dataloader_train.num_workers",
    "dataloader_train.prefetch_factor",
    "dataloader_train.latent_cache",
)
"""Settings that a resumed run may change without being asked: they change no number of the training."""
ABSENT = "(absent)"
ADAPTERS = "model.config.lora_enabled"


@dataclass(frozen=True, slots=True)
class Launch:
    """How the run was started, for its record."""

    config_path: str | None = None
    overrides: Sequence[str] = ()
    origins: Mapping[str, Mapping[str, Any]] | None = None
    """Who wrote each value of the config, as `worldsmith.config.write.origins` has it; None: not known."""


def output_root() -> Path:
    """The folder above all runs, from the environment or `outputs/train`. UserError when two variables disagree."""
    return given_root() or Path(DEFAULT_ROOT)


def given_root() -> Path | None:
    """The output root of the environment; None if no variable gives it. UserError when two variables disagree."""
    given = {name: os.environ[name] for name in ROOT_VARIABLES if os.environ.get(name)}
    if len(set(given.values())) > 1:
        both = ", ".join(f"{name}={value}" for name, value in given.items())
        raise UserError(f"the output root is given twice and differently: {both}; unset one of them")
    return Path(next(iter(given.values()))) if given else None


def run_path(job: JobConfig) -> Path:
    """The run folder of a job. UserError as `output_root`.

    For a job without a name: with `resume_newest` the run that was saved last, else a new one, named by the launcher
    or after the time.
    """
    group = output_root() / job.project / job.group
    if job.folder:
        group = (given_root() or Path()) / os.path.expanduser(job.folder)
    if job.name:
        return group / job.name
    if job.resume_newest and (newest := newest_run(group)):
        return newest
    if given := os.environ.get(START_VARIABLE):
        return group / given
    now = start_time()
    names = (now if count == 1 else f"{now}_{count}" for count in itertools.count(1))
    return group / next(name for name in names if not (group / name).exists())


def new_run_note(job: JobConfig, folder: Path) -> str | None:
    """Message about the folder that a job without a name has; None if it holds a run with checkpoints."""
    if (folder / "checkpoints").exists():
        return None
    why = f"{folder.parent} has no run with a checkpoint to resume" if job.resume_newest else "job.name is empty"
    return f"{why}: a new run, in {folder}; give its name to resume it"


def start_time() -> str:
    """The present time as part of a folder's name."""
    return datetime.now().strftime("%Y-%m-%d_%H-%M-%S")


def newest_run(group: Path) -> Path | None:
    """The run below `group` whose last checkpoint is the newest; None if no run has one."""
    from worldsmith.checkpoint.run.folders import POINTER

    pointers = list(group.glob(f"*/checkpoints/{POINTER}"))
    return max(pointers, key=lambda file: file.stat().st_mtime_ns).parents[1] if pointers else None


def write_records(folder: Path, config: RunConfig, launch: Launch, *, world_size: int) -> None:
    """Writes config.yaml (and custom.yaml), config_origins.json, launch_info.yaml and job_env.yaml."""
    from worldsmith.config.yaml.text import dump_yaml
    from worldsmith.monitor.run_record import write_origins, write_run_record

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "config.yaml", to_yaml(config))
    if config.custom:
        write_text(folder / "custom.yaml", dump_yaml(config.custom))
    write_origins(folder / "config_origins.json", launch.origins)
    write_run_record(
        folder,
        command=sys.argv,
        config_path=launch.config_path,
        overrides=launch.overrides,
        world_size=world_size,
        seed=config.trainer.seed,
    )


def write_data_records(folder: Path, config: RunConfig, data: Mapping[str, tuple[Task, PackingDataLoader]]) -> None:
    """Writes what the data are: their samples, data_report.json, and lineage.json. `data`: by "train" and "val"."""
    from worldsmith.data.stream import dataset_record
    from worldsmith.training.records.lineage import write_run_lineage

    names = {"train": dataset_record.FILE, "val": dataset_record.VALIDATION}
    for split, (_, loader) in data.items():
        write_text(folder / names[split], dataset_record.record_text(loader.dataset))
    reports = {split: task.data_report(loader).facts() for split, (task, loader) in data.items()}
    known = {split: {k: v for k, v in facts.items() if v not in (None, "", [], {})} for split, facts in reports.items()}
    write_text(folder / "data_report.json", json.dumps(known, indent=2, ensure_ascii=False) + "\n")
    write_run_lineage(folder, config, {split: loader for split, (_, loader) in data.items()})


def write_on_main(world: World, folder: Path, write: Callable[[], object]) -> None:
    """Calls `write` on process 0, when all are there. Raises UserError, on all, when the folder cannot be written."""
    problem = None
    world.barrier()
    if world.is_main:
        try:
            write()
        except OSError as error:
            inside = error.filename is None or Path(os.fsdecode(error.filename)).is_relative_to(folder)
            what = f"the run folder {folder} cannot be written" if inside else f"{error.filename} cannot be read"
            problem = f"{what}: {error.strerror or error}"
    problem = world.broadcast(problem)
    if problem is not None:
        raise UserError(problem)


def require_same_run(folder: Path, config: RunConfig, *, resume_changed: bool) -> list[str]:
    """Compares the config of a run that goes on with the one that it was started with; returns the differences.

    Raises UserError, with the differences, when one matters and `resume_changed` is not set.
    """
    changes = changed_settings(folder, config)
    if changes and not resume_changed:
        raise UserError(
            f"the run in {folder} was started with other settings:\n{indented(changes)}\n"
            "Give the run another job.name, put the settings back, or add --resume-changed to go on with the new ones."
        )
    return changes


def completion(folder: Path, config: RunConfig) -> str | None:
    """What to say of a run that has done all its steps, without building anything; None when there is more to do.

    Raises UserError when the config, or the data set, is not that of the run: there is no step left that it could
    change.
    """
    from worldsmith.checkpoint.run.folders import folder_iteration, read_pointer
    from worldsmith.files.manifest import find_damage

    newest, problem = read_pointer(folder / "checkpoints")
    if newest is None or problem or folder_iteration(newest) < config.trainer.max_iter or find_damage(newest):
        return None
    done = folder_iteration(newest)
    config.job.name = config.job.name or folder.name
    changes = changed_settings(folder, config) or changed_data(folder, config)
    if changes:
        raise UserError(
            f"the run in {folder} is complete ({done} steps) and was trained with other settings or data:\n"
            f"{indented(changes)}\nPut them back, give the run another job.name, or raise trainer.max_iter and add "
            "--resume-changed to go on with the new ones."
        )
    return f"the run in {folder} is complete: {done} of {config.trainer.max_iter} steps are done"


def changed_settings(folder: Path, config: RunConfig) -> list[str]:
    """What in the config differs from the run's, and matters. Raises UserError when the run's cannot be read."""
    path = folder / "config.yaml"
    if not path.exists():
        raise UserError(f"{folder} has checkpoints but no config.yaml, so the run cannot be continued safely")
    text, after = read_config_text(path), to_dict(config)
    try:
        before = from_yaml(text, type(config), file=str(path))
    except ConfigError:  # another version's: its classes may have moved, or were not written where there was one only
        with written_here(path):
            before = from_dict(with_classes_of(read_yaml(text, str(path)).data, after), type(config))
    return differences(flatten(to_dict(before)), flatten(after))


def changed_data(folder: Path, config: RunConfig) -> list[str]:
    """Which samples of the data set are not those that the run was trained on; none where it is gone, which is said."""
    from worldsmith.data.stream.dataset_record import FILE, changed_samples
    from worldsmith.data.stream.errors import DataError

    data: Any = config.dataloader_train
    try:
        dataset = data.dataset.build()
    except (DataError, OSError) as error:
        logger.warning("the data cannot be compared with those of the run: %s", error)
        return []
    return changed_samples(folder / FILE, dataset)


def indented(lines: Sequence[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


def differences(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """`path: old -> new` for every value that differs and matters."""
    paths = [path for path in [*before, *(p for p in after if p not in before)] if not is_free(path)]
    if not before.get(ADAPTERS) and not after.get(ADAPTERS):  # their settings have no effect
        paths = [path for path in paths if not path.startswith(ADAPTERS.removesuffix("enabled"))]
    return [
        f"{path}: {before.get(path, ABSENT)!r} -> {after.get(path, ABSENT)!r}"
        for path in paths
        if before.get(path, ABSENT) != after.get(path, ABSENT)
    ]


def is_free(path: str) -> bool:
    return any(path == free or path.startswith(f"{free}.") for free in FREE_TO_CHANGE)


def flatten(node: object, prefix: str = "") -> dict[str, object]:
    """Nested dicts as one level of dotted paths; lists count as values."""
    if not isinstance(node, dict):
        return {prefix: node}
    flat: dict[str, object] = {}
    for key, value in node.items():
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat
