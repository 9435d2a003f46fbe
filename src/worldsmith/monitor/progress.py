"""How far some work is: a bar in a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from worldsmith.monitor.terminal_view import LastingConsole, duration


class ProgressLine:
    """Shown on standard error. To be used as a context manager."""

    def __init__(
        self,
        what: str,
        total: int,
        *,
        console: Console | None = None,
        pause: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pause`: seconds between two plain lines."""
        self.what, self.total, self.pause, self.clock = what, total, pause, clock
        self.console = console or LastingConsole(stderr=True)
        self.started = self.shown = clock()
        self.done = -1
        self.bar: Progress | None = None
        if self.console.is_terminal:
            columns = TextColumn("{task.description} {task.completed:.0f}/{task.total:.0f}"), BarColumn(bar_width=24)
            self.bar = Progress(*columns, TimeRemainingColumn(), console=self.console, refresh_per_second=4)
            self.bar.add_task(what, total=total)

    def __enter__(self) -> ProgressLine:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, done: int) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=done)
            return
        now = self.clock()
        if done == self.done or (done < self.total and now - self.shown < self.pause):
            return
        self.done = done
        self.shown, taken = now, now - self.started
        left = f", {duration(taken / done * (self.total - done))} left" if 0 < done < self.total else ""
        self.console.print(f"{self.what} {done}/{self.total}{left}", soft_wrap=True, highlight=False)
