"""The override words of a recipe TOML: what the file says, as text for people and launch scripts."""

from __future__ import annotations

from typing import Any

from worldsmith.config.declare.value_types import mismatch
from worldsmith.config.errors import ConfigError, Problem
from worldsmith.config.toml.schema import TASKS, remap
from worldsmith.config.tree.paths import flatten, format_path
from worldsmith.config.tree.plain import MISSING, OPAQUE

SELECTORS = {("job", "task"), ("job", "experiment")}


def build_overrides(table: dict[str, Any]) -> list[str]:
    """The override words of a parsed recipe TOML: ``--``, ``experiment=<name>``, then its leaves in file order.

    The words are for people and launch scripts; `load_recipe_toml` fills the tree from the typed values. Raises
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
                words.append(f"{format_path(target)}={format_value(value)}")
    return words


def format_value(value: Any, *, in_list: bool = False) -> str:
    """A value in an override word: text is quoted in lists, and elsewhere only if it holds a comma or a space."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(format_value(item, in_list=True) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{format_value(item, in_list=True)}' for key, item in value.items())}}}"
    if isinstance(value, str) and (in_list or "," in value or " " in value):
        return f"'{value}'"
    return str(value)


def experiment_required() -> Problem:
    return Problem(
        "job.experiment",
        "[job].experiment is required: it names the recipe that this file changes",
        hint='write experiment = "<recipe>" in [job]',
    )
