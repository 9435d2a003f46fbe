"""Settings that cannot go together, found across sections by their documented paths, and what is worth a remark."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from worldsmith.config.configurable import Config
from worldsmith.config.errors import Problem
from worldsmith.config.paths import Path, format_path
from worldsmith.config.tree_access import children, walk

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
    """Degrees whose product is not the number of processes (WORLD_SIZE), or that divide nothing whatever it is."""
    shard, replicate, context, cfg = (_value(tree, (*PARALLELISM, name)) for name in _DEGREES)
    if not all(type(degree) is int for degree in (shard, replicate, context, cfg)) or min(context, cfg) < 1:
        return []
    if any(degree < 1 and degree != -1 for degree in (shard, replicate)):
        return []  # the section's own check says so
    world = _world_size(environment)
    asked = f"data_parallel_shard_degree {shard} × data_parallel_replicate_degree {replicate}"
    fixed = shard * replicate if min(shard, replicate) > 0 else None
    if world is not None:
        known = max(shard, 1) * max(replicate, 1)
        fits = world % known == 0 if fixed is None else world == fixed
        if not fits:
            options = ", ".join(f"{n} × {world // n}" for n in range(1, world + 1) if world % n == 0)
            needs = f"needs {fixed} processes" if fixed else f"needs a multiple of {known} processes"
            message = f"{asked} {needs}, but WORLD_SIZE is {world}"
            return [_degrees(message, f"shard × replicate can be {options}, or -1 for one of them", _DEGREES[:2])]
    total = world if world is not None else fixed
    found = []
    for name, degree in ((_DEGREES[2], context), (_DEGREES[3], cfg)):
        if total is not None and total % degree:
            source = "WORLD_SIZE" if world is not None else asked
            message = f"{name} {degree} does not divide the {total} processes of {source}"
            options = ", ".join(str(n) for n in range(1, total + 1) if total % n == 0)
            found.append(_degrees(message, f"these divide it: {options}", (name,)))
    return found


def remarks(tree: Any, environment: Mapping[str, str] = os.environ) -> list[str]:
    """What is allowed and may surprise: a schedule shorter than the run, a number of processes that is fixed."""
    found = []
    cycles, steps = _value(tree, ("scheduler", "cycle_lengths")), _value(tree, ("trainer", "max_iter"))
    if isinstance(cycles, list) and cycles and all(type(n) is int for n in cycles) and type(steps) is int:
        total = sum(cycles)
        if total < steps:
            found.append(
                f"scheduler.cycle_lengths end after {total} steps, trainer.max_iter is {steps}: "
                f"the last {steps - total} steps run at the schedule's last value"
            )
    shard, replicate = (_value(tree, (*PARALLELISM, name)) for name in _DEGREES[:2])
    if type(shard) is int and type(replicate) is int and _world_size(environment) is None:
        needed = max(shard, 1) * max(replicate, 1)
        if needed > 1:
            several = "" if min(shard, replicate) > 0 else "a multiple of "
            found.append(
                f"{format_path(PARALLELISM)} asks for {several}{needed} processes and WORLD_SIZE is not set: "
                f"start the run with torchrun"
            )
    return found


_DEGREES = (
    "data_parallel_shard_degree",
    "data_parallel_replicate_degree",
    "context_parallel_shard_degree",
    "cfg_parallel_shard_degree",
)


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
    enabled = _value(tree, ("model", "config", "lora_enabled"))
    targets = _value(tree, ("model", "config", "lora_target_modules"))
    patterns = _value(tree, ("optimizer", "keys_to_select"))
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


def _degrees(message: str, advice: str, names: tuple[str, ...]) -> Problem:
    concerns = tuple(format_path((*PARALLELISM, name)) for name in names)
    return Problem(format_path(PARALLELISM), message, hint=advice, concerns=concerns)


def _world_size(environment: Mapping[str, str]) -> int | None:
    text = environment.get("WORLD_SIZE", "")
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0 else None


def _value(tree: Any, path: Path) -> Any:
    node = tree
    for part in path:
        node = dict(children(node)).get(part)
    return node
