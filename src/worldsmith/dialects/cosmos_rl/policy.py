"""Decides whether a training request becomes a search: `automl_policy`, phrases in the request, and obstacles.

The policy applies to one request only; no file is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from worldsmith.config.errors import UserError
from worldsmith.config.tree.suggest import did_you_mean

Policy = Literal["auto", "off"]
KEY = "automl_policy"
MANIFEST, SCHEMA, TEMPLATE = "manifest.json", "schemas/{}.schema.json", "spec_template_{}.yaml"
"""Paths in a schema folder: manifest, and JSON Schema and spec template of an action; {} is the name of the action."""
NOT_RUNNABLE = "AutoML is enabled but not runnable until schemas are generated (worldsmith schema --all -o DIR)"

_SEARCH = r"(?:auto[- ]?ml|hpo|hyper-?parameter (?:search|tuning|optimi[sz]ation))"
_OFF = re.compile(
    rf"\b(?:(?:turn|switch)(?:ing|ed)? off (?:the )?{_SEARCH}|(?:turn|switch)(?:ing|ed)? (?:the )?{_SEARCH} off"
    rf"|disabl(?:e|ing) (?:the )?{_SEARCH}|{_SEARCH} (?:is |be )?(?:off|disabled)"
    rf"|(?:no|without|skip) (?:the )?{_SEARCH}"
    rf"|(?:do not|don't|never) (?:use|run|do|want|start|enable) (?:any |the )?{_SEARCH}|plain training)\b"
)
_NEGATED = re.compile(
    r"\b(?:not|don't|doesn't|shouldn't|won't|never|no|no need to|without|instead of|rather than|avoid)"
    r"(?: (?:to|do|a|the|want|want to|use|ever|please|you|run|even))*$"
)


@dataclass(frozen=True, slots=True)
class Route:
    """Decision whether a request starts a hyperparameter search (`search`) or runs the action directly."""

    search: bool
    message: str
    """Reason, for messages."""
    words: tuple[str, ...] = ()
    """Overrides of the request without `automl_policy`."""


def choose_policy(explicit: str | None, request: str = "") -> Policy:
    """Returns whether one request may start a hyperparameter search ("auto") or not ("off").

    An explicit value has precedence over the text of the request; without both, the result is "auto".

    Args:
        explicit: Value of `automl_policy`; None if it is not given.
        request: Request in natural language. The last phrase that turns the search off counts; a negated one does
            not.

    Raises:
        UserError: If `explicit` is neither "auto" nor "off".
    """
    if explicit is not None:
        if explicit not in get_args(Policy):
            advice = did_you_mean(explicit, get_args(Policy))
            raise UserError(f"{KEY}: expected auto or off, found '{explicit}'{f'; {advice}' if advice else ''}")
        return "auto" if explicit == "auto" else "off"
    verdict: Policy = "auto"
    text = re.sub(r"\s+", " ", request.lower().replace("’", "'"))
    for found in _OFF.finditer(text):
        clause = re.split(r"[.,;:!?]|\bbut\b", text[: found.start()])[-1].rstrip()
        verdict = "auto" if _NEGATED.search(clause) else "off"
    return verdict


def take_policy(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Separates ``automl_policy=…`` from the other overrides.

    Args:
        words: Overrides of a command line.

    Returns:
        The value of `automl_policy` (the last one if there are several, None if not given), and the other
        overrides.
    """
    given = [word.partition("=")[2].strip("\"'") for word in words if word.partition("=")[0] == KEY]
    return (given[-1] if given else None), [word for word in words if word.partition("=")[0] != KEY]


def route(
    action: str, words: Sequence[str] = (), *, request: str = "", folder: Path | None = None, enabled: bool = True
) -> Route:
    """Decides whether a request for an action starts a hyperparameter search.

    Args:
        action: Name of the action; only "train" can be searched.
        words: Overrides, possibly with ``automl_policy=…``.
        request: Request in natural language, which may turn the search off.
        folder: Folder with the schemas and templates that the search needs; None: they are not checked.
        enabled: Whether the search is enabled for the model; False has precedence over the policy "auto".

    Returns:
        The decision, its reason, and the overrides without `automl_policy`.

    Raises:
        UserError: If `automl_policy` is neither "auto" nor "off".
    """
    explicit, rest = take_policy(words)
    policy, kept = choose_policy(explicit, request), tuple(rest)
    if action != "train":
        return Route(False, f"{action} cannot be tuned", kept)
    if policy == "off":
        return Route(False, f"{KEY} is off for this run", kept)
    if not enabled or (folder and not _is_enabled(folder)):
        return Route(False, "AutoML is not enabled for this model", kept)
    reason = _find_obstacle(folder, action) if folder else ""
    return Route(False, f"{NOT_RUNNABLE}: {reason}", kept) if reason else Route(True, f"{KEY} is auto", kept)


def _is_enabled(folder: Path) -> bool:
    """Returns whether the manifest in a schema folder enables the search; True if the manifest cannot be read."""
    data, _ = _read(folder / MANIFEST)
    return data.get("automl_enabled") is not False


def _find_obstacle(folder: Path, action: str) -> str:
    """Returns why the JSON schema or the spec template of `action` in `folder` cannot be used; "" if both can."""
    schema, reason = _read(folder / SCHEMA.format(action))
    if not reason and not isinstance(schema.get("properties"), dict):
        reason = f"{folder / SCHEMA.format(action)} has no `properties`: expected the JSON Schema of a spec"
    return reason or _read(folder / TEMPLATE.format(action))[1]


def _read(file: Path) -> tuple[dict[str, Any], str]:
    """Returns (table, "") for a JSON or YAML file; ({}, reason) if the file cannot be read or holds no table."""
    try:
        text = file.read_text(encoding="utf-8")
        data = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except FileNotFoundError:
        return {}, f"{file} is missing"
    except (OSError, ValueError, yaml.YAMLError) as error:
        return {}, f"{file} cannot be read: {str(error).partition(chr(10))[0]}"
    return (data, "") if isinstance(data, dict) else ({}, f"{file} contains no table")
