"""Terminal output of a run: one live status line, with messages that scroll above it."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from worldsmith.config.write.values import escape_controls
from worldsmith.monitor.short_text import format_duration, short_number
from worldsmith.monitor.terminal_text import fit_width
from worldsmith.monitor.throughput import Activity

BAR = 16
"""Max columns of the bar of a live line."""
LEAST_BAR = 6
"""Columns reserved for the bar, with the spaces around it."""


class TerminalView:
    """Context manager that shows a progress line: step, loss, tokens/s and remaining time.

    In a terminal the line is redrawn in place four times per second, with a second line for the current activity.
    If the output is a file or a pipe, a plain line is printed for the first and last step and at intervals. Log records
    of `worldsmith` and all other output appear above the progress line.

    Args:
        total_steps: Number of steps of the run.
        first_step: Number of steps that were completed before this start of the run.
        console: Console to write to; None: standard output.
        plain_interval: Min seconds between plain lines.
        clock: Returns the time in seconds.
        meanwhile: Returns the current activity; None: no second line.
    """

    def __init__(
        self,
        *,
        total_steps: int,
        first_step: int = 0,
        console: Console | None = None,
        plain_interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        meanwhile: Callable[[], Activity | None] = lambda: None,
    ) -> None:
        self.total_steps = total_steps
        self.console = console or LastingConsole()
        self.plain_interval = plain_interval
        self.clock = clock
        self.shown_at: float | None = None
        self.handler = ViewHandler(self)
        self.progress: Bars | None = None
        self.task: TaskID | None = None
        if self.console.is_terminal:
            # One line in any terminal: the bar shrinks, and `update` omits the speed if the line is too long.
            columns = (
                TextColumn("step {task.completed:.0f}/{task.total:.0f}", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=None, table_column=Column(max_width=BAR)),
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            )
            self.progress = Bars(*columns, console=self.console, meanwhile=meanwhile)
            self.task = self.progress.add_task("starting", total=total_steps, completed=first_step)

    def __enter__(self) -> TerminalView:
        logger = logging.getLogger("worldsmith")
        self.former = logger.level, logger.propagate
        logger.addHandler(self.handler)
        logger.setLevel(min(logger.level or logging.INFO, logging.INFO))
        logger.propagate = False
        if self.progress is not None:
            self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.progress is not None:
            self.progress.stop()
        logger = logging.getLogger("worldsmith")
        logger.removeHandler(self.handler)
        logger.setLevel(self.former[0])
        logger.propagate = self.former[1]

    def update(
        self,
        step: int,
        *,
        loss: float,
        tokens_per_second: float | None = None,
        remaining_seconds: float | None = None,
    ) -> None:
        """Shows the progress after `step` optimizer steps: loss, speed and remaining time; None is omitted."""
        parts = [f"loss {loss:.4f}"]
        if remaining_seconds is not None and step < self.total_steps:
            parts.append(f"{format_duration(remaining_seconds)} left")
        if tokens_per_second is not None:
            speed = f"{short_number(tokens_per_second)} tokens/s"
            room = self.console.width - len(f"step {self.total_steps}/{self.total_steps}") - LEAST_BAR
            if self.progress is None or len("  ".join([*parts, speed])) <= room:
                parts.insert(1, speed)
        text = "  ".join(parts)
        if self.progress is not None and self.task is not None:
            self.progress.update(self.task, completed=step, description=text)
            return
        now = self.clock()
        if self.shown_at is None or step >= self.total_steps or now - self.shown_at >= self.plain_interval:
            self.shown_at = now
            self.print(f"step {step}/{self.total_steps}  {text}")

    def print(self, message: str, *, style: str = "") -> None:
        """Prints a message above the progress line, in the rich style `style`."""
        text = fit_width(escape_controls(message), self.console.width if self.console.is_terminal else None)
        try:
            self.console.print(Text(text, style=style), soft_wrap=True)
        except OSError as error:  # a log file on a full disk
            stop_output(self.console, error)

    def warning(self, message: str) -> None:
        """Prints a warning above the progress line."""
        self.print(f"warning: {message}", style="yellow")


class Bars(Progress):
    """Rich progress display: the progress line, and a line for the current activity that is updated at each redraw."""

    def __init__(self, *columns: ProgressColumn, meanwhile: Callable[[], Activity | None], console: Console) -> None:
        self.meanwhile = meanwhile
        super().__init__(*columns, console=console, refresh_per_second=4)

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        now = self.meanwhile()
        if now is not None:
            done = now.fraction
            line = Table.grid(padding=(0, 1))
            bar = ProgressBar(total=None if done is None else 1.0, completed=done or 0.0, width=16)
            line.add_row(Text(now.name), bar, Text("" if done is None else f"{done:.0%}"))
            yield line


class LastingConsole(Console):
    """A console that stops its output if its reader ends (`| head`), where rich would end the run without a message."""

    def on_broken_pipe(self) -> None:
        stop_output(self, BrokenPipeError("the reading process has closed the pipe"))


def stop_output(console: Console, error: OSError) -> None:
    """Stops terminal output after a write error, with a single warning if possible."""
    if not console.quiet:
        console.quiet = True
        with suppress(OSError):  # what is still buffered must not fail at the end of the process
            os.dup2(os.open(os.devnull, os.O_WRONLY), console.file.fileno())
        with suppress(OSError):
            print(f"standard output is no longer written: {error}; the run continues", file=sys.stderr, flush=True)


class ViewHandler(logging.Handler):
    """Log handler that prints records above the progress line of a view."""

    def __init__(self, view: TerminalView) -> None:
        super().__init__(logging.INFO)
        self.view = view

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.format(record)
            if record.levelno >= logging.ERROR:
                self.view.print(f"error: {message}", style="red")
            elif record.levelno >= logging.WARNING:
                self.view.warning(message)
            else:
                self.view.print(message)
        except Exception:
            self.handleError(record)
