"""Settings that cannot go together, found across sections by their documented paths, and what is worth a remark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from worldsmith.config.declare.configurable import find, walk
from worldsmith.config.errors import Problem, WrongValueError
from worldsmith.config.tree.degrees import NAMES, fit_degrees, needed_processes
from worldsmith.config.tree.paths import Path, format_path

PARALLELISM: Path = ("model", "config", "parallelism")


def alternatives(tree: Any) -> list[tuple[Path, Any, list[str]]]:
    """The fields that are set although at most one may be, with their section: the class's ``_alternatives``."""
    groups = [
        (path, section, [name for name in group if getattr(section, name) is not None])
        for path, section in walk(tree)
        for group in getattr(type(section), "_alternatives", ())
    ]
    return [(path, section, given) for path, section, given in groups if len(given) > 1]


def degree_problems(tree: Any, environment: Mapping[str, str] = os.environ) -> list[Problem]:
    """Degrees whose product is not the number of processes (WORLD_SIZE)."""
    shard, replicate, context = degrees = [find(tree, (*PARALLELISM, name)) for name in NAMES]
    world = _world_size(environment)
    if world is None or not all(type(degree) is int and (degree > 0 or degree == -1) for degree in degrees):
        return []  # or the section's own check says so
    try:
        fit_degrees(shard, replicate, world, context=context)
    except WrongValueError as error:
        concerns = tuple(format_path((*PARALLELISM, name)) for name in error.names)
        return [
            Problem(format_path(PARALLELISM), f"{error.message} (WORLD_SIZE)", hint=error.remedy, concerns=concerns)
        ]
    return []


TRIAL_STEPS = 20
"""A run of at most so many steps tests that training works; its learning rate is of no interest."""


def remarks(tree: Any, environment: Mapping[str, str] = os.environ) -> list[str]:
    """What is allowed and may surprise: short cycles, a long warm-up, rules for loading nothing, degrees."""
    found = [*_endless_warm_up(tree)]
    cycles, steps = find(tree, ("scheduler", "cycle_lengths")), find(tree, ("trainer", "max_iter"))
    if isinstance(cycles, list) and cycles and all(type(n) is int for n in cycles) and type(steps) is int:
        total = sum(cycles)
        if total < steps:
            found.append(
                f"scheduler.cycle_lengths end after {total} steps, trainer.max_iter is {steps}: "
                f"the last {steps - total} steps run at the schedule's last value"
            )
    skipped = find(tree, ("checkpoint", "keys_to_skip_loading"))
    start = [find(tree, ("checkpoint", name)) for name in ("load_path", "init")]
    if skipped and start == [None, "scratch"]:
        found.append(f"checkpoint.keys_to_skip_loading = {skipped} has no effect: without load_path nothing is loaded")
    caps = find(tree, ("data_setting",))
    if find(tree, ("job", "task")) == "vfm" and caps is not None and caps != type(caps)():
        found.append("data_setting has no effect for task 'vfm': its caps are those of a reasoner's data")
    degrees = [find(tree, (*PARALLELISM, name)) for name in NAMES]
    if all(type(degree) is int for degree in degrees) and _world_size(environment) is None:
        needed = needed_processes(*degrees)
        if max(degrees) > 1:
            found.append(
                f"{format_path(PARALLELISM)} asks for {needed} and WORLD_SIZE is not set: use worldsmith launch"
            )
    return found


def _endless_warm_up(tree: Any) -> Iterator[str]:
    """Says what the schedule becomes where the run reaches a cycle that is not longer than its warm-up."""
    schedule, steps = find(tree, ("scheduler",)), find(tree, ("trainer", "max_iter"))
    names = ("cycle_lengths", "warm_up_steps", "f_start", "f_max")
    lists = [find(schedule, (name,)) for name in names]
    if not all(isinstance(values, list) for values in lists) or type(steps) is not int or steps <= TRIAL_STEPS:
        return
    begin = 0
    for cycle, (length, warm_up, start, top) in enumerate(zip(*lists, strict=False)):
        if not all(type(n) is int for n in (length, warm_up)) or begin >= steps:
            return
        if warm_up >= length > 0:
            last = min(steps - begin, length)
            factor = start + (top - start) * last / warm_up
            yield (
                f"scheduler.warm_up_steps[{cycle}] = {warm_up} is not below cycle_lengths[{cycle}] = {length}: the "
                f"learning rate is still in warm-up at step {begin + last}, where it reaches {factor:.1%} of "
                "optimizer.lr, and there is no decay"
            )
        begin += length


def contradictions(tree: Any) -> list[Problem]:
    """Alternatives that are both set. `concerns` of each names the values."""
    problems = []
    for path, section, given in alternatives(tree):
        values = " and ".join(f"{name} = {getattr(section, name)}" for name in given)
        names = tuple(format_path((*path, name)) for name in given)
        null = f"{names[0]}=null"
        advice = f"keep one: leave the other out of the file, or write it as {null} after -- (TOML has no null)"
        problems.append(Problem(format_path(path), f"{values} cannot both be set", hint=advice, concerns=names))
    return problems


def _world_size(environment: Mapping[str, str]) -> int | None:
    text = environment.get("WORLD_SIZE", "")
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0 else None
