"""The task classes of the model families (`Family.task`)."""

from __future__ import annotations

from pkgutil import resolve_name

from worldsmith.models.families import FamilyRegistry
from worldsmith.tasks.task import Task

TASKS: FamilyRegistry[type[Task]] = FamilyRegistry(lambda family: resolve_name(family.task))


def task_of(family: str) -> type[Task]:
    """Returns the task class of a model family.

    Raises:
        ValueError: If the family does not exist or has no task.
    """
    task = TASKS.find(family)
    if task is None:
        raise ValueError(f"no task can train models of the family '{family}'; known: {', '.join(TASKS.names())}")
    return task
