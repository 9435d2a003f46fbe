"""Where a run lives and what it says about itself: `<output root>/<project>/<group>/<name>/`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.atomic import write_text
from worldsmith.config.errors import UserError
from worldsmith.config.tree import from_yaml, to_dict, to_yaml

if TYPE_CHECKING:
    from worldsmith.config.sections import JobConfig
    from worldsmith.training.trainer import Trainer

ROOT_VARIABLES = ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT")
DEFAULT_ROOT = "outputs/train"

FREE_TO_CHANGE = (
    "trainer.max_iter",
    "trainer.logging_iter",
    "trainer.max_consecutive_skipped",
    "trainer.callbacks.iter_speed",
    "trainer.callbacks.metrics",
    "checkpoint",
    "job.wandb_mode",
    "dataloader_train.num_workers",
    "dataloader_train.prefetch_factor",
)
"""Settings that a resumed run may change without being asked: they change no number of the training."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How the run was started, for its record."""

    config_path: str | None = None
    overrides: Sequence[str] = ()


def output_root() -> Path:
    """The folder above all runs, from the environment or `outputs/train`. UserError when two variables disagree."""
    given = {name: os.environ[name] for name in ROOT_VARIABLES if os.environ.get(name)}
    if len(set(given.values())) > 1:
        both = ", ".join(f"{name}={value}" for name, value in given.items())
        raise UserError(f"the output root is given twice and differently: {both}; unset one of them")
    return Path(next(iter(given.values()), DEFAULT_ROOT))


def run_path(job: JobConfig) -> Path:
    """The run folder of a job. UserError when a part of its name is empty."""
    for part in ("project", "group", "name"):
        if not getattr(job, part):
            raise UserError(f"job.{part} is empty; the run folder is <output root>/<project>/<group>/<name>")
    return output_root() / job.project / job.group / job.name


def write_records(folder: Path, config: Trainer.Config, launch: Launch, *, world_size: int) -> None:
    """Writes config.yaml (and custom.yaml), launch_info.yaml and job_env.yaml."""
    from worldsmith.config.yaml_text import dump_yaml
    from worldsmith.monitor.run_record import write_run_record

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "config.yaml", to_yaml(config))
    if config.custom:
        write_text(folder / "custom.yaml", dump_yaml(config.custom))
    write_run_record(
        folder,
        command=sys.argv,
        config_path=launch.config_path,
        overrides=launch.overrides,
        world_size=world_size,
        seed=config.trainer.seed,
    )


def require_same_run(folder: Path, config: Trainer.Config, *, resume_changed: bool) -> list[str]:
    """Compares the config of a run that goes on with the one that it was started with; returns the differences.

    Raises UserError, with the differences, when one matters and `resume_changed` is not set.
    """
    path = folder / "config.yaml"
    if not path.exists():
        raise UserError(f"{folder} has checkpoints but no config.yaml, so the run cannot be continued safely")
    before = flatten(to_dict(from_yaml(path.read_text(encoding="utf-8"), type(config), file=str(path))))
    changes = differences(before, flatten(to_dict(config)))
    if changes and not resume_changed:
        lines = "\n".join(f"  {line}" for line in changes)
        raise UserError(
            f"the run in {folder} was started with other settings:\n{lines}\n"
            "Give the run another job.name, put the settings back, or add --resume-changed to go on with the new ones."
        )
    return changes


def differences(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """`path: old -> new` for every value that differs and matters."""
    paths = [path for path in [*before, *(p for p in after if p not in before)] if not is_free(path)]
    absent = "(absent)"
    return [
        f"{path}: {before.get(path, absent)!r} -> {after.get(path, absent)!r}"
        for path in paths
        if before.get(path, absent) != after.get(path, absent)
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
