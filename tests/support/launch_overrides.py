"""The overrides to which cosmos-framework converts a recipe TOML; `read_recipe_toml` sets the typed values instead."""

from __future__ import annotations

from typing import Any

from worldsmith.config.declare.configurable import OPAQUE
from worldsmith.config.declare.value_types import mismatch
from worldsmith.config.errors import ConfigError
from worldsmith.config.toml import recipe_toml
from worldsmith.config.toml.toml_schema import TASKS, remap
from worldsmith.config.tree.paths import flatten, format_path
from worldsmith.config.tree.plain import MISSING
from worldsmith.config.write.values import LAUNCH_WORD, write

SELECTORS = {("job", "task"), ("job", "experiment")}


def build_overrides(table: dict[str, Any]) -> list[str]:
    """Converts a parsed recipe TOML to overrides: ``--``, ``experiment=<name>``, then its leaves in file order.

    Args:
        table: Parsed recipe TOML.

    Raises:
        ConfigError: If the experiment is missing or the task is unknown.
    """
    job = table.get("job", {})
    experiment = job.get("experiment", "") if isinstance(job, dict) else ""
    if not experiment:
        raise ConfigError([recipe_toml._experiment_required()])
    task = job.get("task", "vfm")
    if task not in TASKS:
        raise ConfigError([mismatch(("job", "task"), f"one of {list(TASKS)}", task)])
    words = ["--", f"experiment={experiment}"]
    for section, content in table.items():
        if section == OPAQUE:
            continue
        if section == "job":
            content = {key: value for key, value in job.items() if (section, key) not in SELECTORS}
        for path, value in flatten({section: content}):
            target = remap(tuple(str(part) for part in path), task)
            if target is not None and value != MISSING:
                words.append(f"{format_path(target)}={write(value, LAUNCH_WORD)}")
    return words
