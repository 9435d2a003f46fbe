"""Settings that cannot go together, found across sections by their documented paths, and what is worth a remark."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from worldsmith.config.declare.configurable import Config
from worldsmith.config.errors import Problem
from worldsmith.config.tree.access import find, walk
from worldsmith.config.tree.degrees import NAMES, DegreesError, fit_degrees, needed_processes
from worldsmith.config.tree.paths import Path, format_path

PARALLELISM: Path = ("model", "config", "parallelism")
_ADAPTED_LAYER = "language_model.model.layers.0.{part}.{target}.lora_{side}.weight"
_PARTS = ("self_attn", "mlp", "mlp_moe_gen", "attn")


def alternatives_of(section: Config) -> list[tuple[str, ...]]:
    """The groups of fields of which at most one may be set: the class's ``_alternatives: ClassVar``."""
    return list(getattr(type(section), "_alternatives", ()))


def contradictions(tree: Any) -> list[Problem]:
    """What cannot work, however many processes there are. `concerns` of each names the values."""
    return [*_double_settings(tree), *_adapters_without_training(tree)]


def degree_problems(tree: Any, environment: Mapping[str, str] = os.environ) -> list[Problem]:
    """Degrees whose product is not the number of processes (WORLD_SIZE)."""
    shard, replicate, context = (find(tree, (*PARALLELISM, name)) for name in NAMES)
    if not all(type(degree) is int for degree in (shard, replicate, context)) or context < 1:
        return []
    if any(degree < 1 and degree != -1 for degree in (shard, replicate)):
        return []  # the section's own check says so
    world = _world_size(environment)
    if world is None:
        return []
    try:
        fit_degrees(shard, replicate, world, context=context)
    except DegreesError as error:
        concerns = tuple(format_path((*PARALLELISM, name)) for name in NAMES)
        message = f"{error.message} (WORLD_SIZE)"
        return [Problem(format_path(PARALLELISM), message, hint=error.advice, concerns=concerns)]
    return []


def remarks(tree: Any, environment: Mapping[str, str] = os.environ) -> list[str]:
    """What is allowed and may surprise: a short schedule, rules for loading nothing, a number of processes."""
    found = []
    cycles, steps = find(tree, ("scheduler", "cycle_lengths")), find(tree, ("trainer", "max_iter"))
    if isinstance(cycles, list) and cycles and all(type(n) is int for n in cycles) and type(steps) is int:
        total = sum(cycles)
        if total < steps:
            found.append(
                f"scheduler.cycle_lengths end after {total} steps, trainer.max_iter is {steps}: "
                f"the last {steps - total} steps run at the schedule's last value"
            )
    skipped = find(tree, ("checkpoint", "keys_to_skip_loading"))
    if skipped and find(tree, ("checkpoint", "load_path")) is None:
        found.append(f"checkpoint.keys_to_skip_loading = {skipped} has no effect: without load_path nothing is loaded")
    degrees = [find(tree, (*PARALLELISM, name)) for name in NAMES]
    if all(type(degree) is int for degree in degrees) and _world_size(environment) is None:
        needed = needed_processes(*degrees)
        if max(degrees) > 1:
            found.append(
                f"{format_path(PARALLELISM)} asks for {needed} and WORLD_SIZE is not set: use worldsmith launch"
            )
    return found


def _double_settings(tree: Any) -> list[Problem]:
    problems = []
    for path, section in walk(tree):
        for group in alternatives_of(section) if isinstance(section, Config) else ():
            given = [(name, getattr(section, name)) for name in group if getattr(section, name) is not None]
            if len(given) > 1:
                values = " and ".join(f"{name} = {value}" for name, value in given)
                names = [format_path((*path, name)) for name, _ in given]
                null = f"{names[0]}=null"
                advice = f"keep one: leave the other out of the file, or write it as {null} after -- (TOML has no null)"
                message = f"{values} cannot both be set"
                problems.append(Problem(format_path(path), message, hint=advice, concerns=tuple(names)))
    return problems


def _adapters_without_training(tree: Any) -> list[Problem]:
    """LoRA whose adapters the optimizer's filter leaves out, or a filter for adapters without LoRA."""
    enabled = find(tree, ("model", "config", "lora_enabled"))
    targets = find(tree, ("model", "config", "lora_target_modules"))
    patterns = find(tree, ("optimizer", "keys_to_select"))
    if not isinstance(patterns, list) or not all(isinstance(p, str) for p in patterns) or not patterns:
        return []
    where = "optimizer.keys_to_select"
    concerns = (where,)
    if enabled is False and all("lora_" in pattern for pattern in patterns):
        message = f"{patterns} selects adapters only, and model.config.lora_enabled is false: nothing would be trained"
        return [
            Problem(where, message, hint="set model.lora_enabled = true, or select other parameters", concerns=concerns)
        ]
    if enabled is True and isinstance(targets, str):
        # A target may be the end of a path; whether there is such a layer is the model's own check.
        leaves = [target.strip().rpartition(".")[2] for target in targets.split(",")]
        names = [
            _ADAPTED_LAYER.format(part=part, target=leaf, side=side)
            for leaf in leaves
            for part in _PARTS
            for side in "AB"
        ]
        useless = [p for p in patterns if not any(re.sub(r"\d+", "0", p) in name for name in names)]
        if useless:
            message = f"{useless} selects none of the adapters, and model.config.lora_enabled trains nothing else"
            advice = 'leave keys_to_select empty or write ["lora_"]'
            return [Problem(where, message, hint=advice, concerns=concerns)]
    return []


def _world_size(environment: Mapping[str, str]) -> int | None:
    text = environment.get("WORLD_SIZE", "")
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0 else None
