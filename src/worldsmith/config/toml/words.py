"""The override words of a recipe TOML: what the file says, as text for people and launch scripts."""

from __future__ import annotations

from typing import Any

from worldsmith.config.declare.value_types import mismatch
from worldsmith.config.errors import ConfigError, Problem
from worldsmith.config.toml.schema import TASKS, remap
from worldsmith.config.tree.paths import flatten, format_path
from worldsmith.config.tree.plain import MISSING, OPAQUE
from worldsmith.config.write.values import LAUNCH_WORD, write

SELECTORS = {("job", "task"), ("job", "experiment")}


def build_overrides(table: dict[str, Any]) -> list[str]:
    """The override words of a parsed recipe TOML: ``--``, ``experiment=<name>``, then its leaves in file order.

    The words are for people and launch scripts; `read_recipe_toml` fills the tree from the typed values. Raises
    ConfigError if the experiment is missing or the task unknown.
    """
    job = table.get("job", {})
    experiment = job.get("experiment", "") if isinstance(job, dict) else ""
    if not experiment:
        raise ConfigError([experiment_required()])
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


def experiment_required() -> Problem:
    return Problem(
        "job.experiment",
        "[job].experiment is required: it names the recipe that this file changes",
        hint='write experiment = "<recipe>" in [job]',
    )


def other_system_problem(table: dict[str, Any]) -> Problem | None:
    """The one mistake of a TOML that was written for torchtitan; None for every other text."""
    model, training = table.get("model"), table.get("training")
    if not (isinstance(model, dict) and isinstance(training, dict) and {"name", "flavor"} <= model.keys()):
        return None
    return Problem(
        "model.flavor",
        "this is a job config of torchtitan: expected a recipe TOML, whose [job].experiment names a recipe",
        hint="`worldsmith recipes` lists the recipes; for FLUX.1: `worldsmith config new --from flux_dev run.toml`"
        if model["name"] == "flux"
        else "text models are not trained here; `worldsmith recipes` lists what is",
    )
