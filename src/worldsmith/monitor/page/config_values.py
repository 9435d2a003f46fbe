"""Config values of a run with their origins, and differences between runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from worldsmith.config.tree.paths import format_path
from worldsmith.config.write.annotate import plain_leaves
from worldsmith.monitor.page.run_files import RunFiles
from worldsmith.monitor.redaction import redact_setting

ABSENT = "–"


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A config value shown in the report, formatted as text."""

    path: str
    """Dotted path in the config, such as "optimizer.lr"."""
    value: str
    origin: str = ""
    """Source of the value, such as the recipe file or an override; "": not known."""
    changed: bool = False
    """Whether the value differs from the recipe."""
    was: str | None = None
    """Value in the recipe, if it differs."""


def settings(run: RunFiles) -> list[ConfigValue]:
    """Returns the config values of a run and their origins, in the order of config.yaml; secrets are redacted."""
    found = []
    for path, value in values_of(run):
        about = run.origins.get(path, {})
        was = format_setting(path, about["was"]) if "was" in about else None
        changed = bool(about.get("changed"))
        found.append(ConfigValue(path, format_setting(path, value), str(about.get("origin", "")), changed, was))
    return found


def differences(runs: Sequence[RunFiles]) -> list[tuple[str, list[str]]]:
    """Returns (path, text of the value in each run, or "–") of the config values that are not equal in all runs."""
    tables = [{path: format_setting(path, value) for path, value in values_of(run)} for run in runs]
    paths = dict.fromkeys(path for table in tables for path in table)
    found = [(path, [table.get(path, ABSENT) for table in tables]) for path in paths]
    return [(path, values) for path, values in found if len(set(values)) > 1]


def values_of(run: RunFiles) -> list[tuple[str, Any]]:
    """Returns (dotted path, value) of each scalar, and of each list of scalars, in the config of the run."""
    return [(format_path(path), value) for path, value in plain_leaves(run.config) if path]


def format_setting(path: str, value: Any) -> str:
    """Formats the config value at `path` for the report; secrets are redacted."""
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)
    return redact_setting(path, text)
