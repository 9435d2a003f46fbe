"""Base classes of commands that divide their work among processes of this machine or of Ray."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from worldsmith.actions.action import Action
from worldsmith.actions.processes import apply_to_share, call_or_fail, run_messages
from worldsmith.actions.ray_processes import connect_ray, is_ray, map_on_ray
from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count, NotNegative, PositiveFactor
from worldsmith.config.errors import UserError

POOL_FLAGS = "--processes, --on and --max-failures"
"""Flags of `PoolAction`, for messages about commands or settings with which they cannot be used."""


class RayAction(Action):
    """Base class of commands that can run their work on Ray."""

    metavars: ClassVar[Mapping[str, str]] = {"on": "WHERE", "record_timeout": "SECONDS"}

    class Config(Action.Config):
        on: str = "local"
        """Where the processes run: "local", "ray" (a Ray that is started on this machine) or "ray://HOST:PORT" (the
        Ray cluster with this head; this machine must be one of its nodes)."""
        record_timeout: PositiveFactor | None = None
        """Time limit in seconds for the work that a process gets at once (a sample, a file, a batch of windows), above
        which it has failed; only with --on ray. The first time of a process includes loading the model."""

        def check(self) -> None:
            super().check()
            if self.on != "local" and not is_ray(self.on):
                raise wrong(self, "on", allowed="local, ray or ray://HOST:PORT")
            if self.record_timeout is not None and self.on == "local":
                why = "the work of a local process is not interrupted"
                raise wrong(self, "record_timeout", why=why, remedy="add --on ray")


class PoolAction(RayAction):
    """Base class of commands that divide items, such as clips, among processes of this machine or of Ray."""

    needs_gpu: ClassVar[bool] = True
    """Whether each process gets a GPU, where there are any."""
    spawns: bool = sys.platform != "linux"
    """Whether local processes start without a copy of this one; see `run_messages`."""

    class Config(RayAction.Config):
        processes: Count = 1
        """Number of processes that share the work, on this machine or on Ray."""
        max_failures: NotNegative = 0
        """Number of samples, files or windows that may fail before the command ends with an error. Those that the
        command skips with a reason do not count."""

        @property
        def uses_pool(self) -> bool:
            """Whether the work is done by `PoolAction.apply`, which counts the items that fail."""
            return self.processes > 1 or is_ray(self.on) or self.max_failures > 0

    config: Config

    def apply(self, make: Callable[[int], Callable[[Any], Any]], items: Sequence[Any]) -> Iterator[Any]:
        """Applies a function to items in the processes of the command; yields the results as they complete.

        Args:
            make: Called once in each process, with the number of the GPU that it uses; returns the function. Picklable.
            items: Different hashable items; they and the results are picklable.

        Yields:
            The result of the function, or a `FailedItem` if it raised an error.

        Raises:
            UserError: If the function raises UserError or DataError, or `make` raises one of these, ValueError or
                OSError.
            WorkerProcessError: If a process on this machine was killed, or if the Ray cluster fails.
        """
        config = self.config
        count = min(config.processes, len(items))
        if not items:
            return
        if is_ray(config.on):
            with connect_ray(config.on, count, needs_gpu=self.needs_gpu):
                yield from map_on_ray(
                    partial(make, 0), items, count, timeout=config.record_timeout, needs_gpu=self.needs_gpu
                )
        elif count > 1:
            work = partial(apply_to_share, make, items)
            yield from (value for kind, _, value in run_messages(work, count, spawn=self.spawns) if kind == "done")
        else:
            function = make(0)
            yield from (call_or_fail(function, item) for item in items)

    def require_few_failures(self, failed: int, done: str, *, what: str = "sample", continues: bool = True) -> None:
        """Raises UserError if more than `max_failures` items have failed.

        Args:
            failed: Number of items that have failed.
            done: Participle of what is done to an item, such as "encoded".
            what: Name of an item.
            continues: Whether the same command continues where this one ends.
        """
        if failed > self.config.max_failures:
            items = f"{failed} {what}{'s' * (failed != 1)} cannot be {done} (see above)"
            remedy = f"fix the cause, or raise --max-failures{'; the same command continues' * continues}"
            raise UserError(f"{items}, {self.config.max_failures} are allowed: {remedy}")
