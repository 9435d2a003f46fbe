"""`Action`: what is done around a run, as a component that owns its settings."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from worldsmith.config import Configurable, UserError
from worldsmith.data.stream.errors import DataError
from worldsmith.files.remote import READ_ONLY, full_address, is_remote


class ColoredLine(str):
    """Output line with terminal color codes, which is printed unescaped; untrusted text in it is already escaped."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a command: output lines, data for `--json` and the exit code."""

    lines: Iterable[str] = ()
    """Output lines for the terminal; may be a generator that yields them as they become available."""
    facts: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)
    """The result as plain data for `--json`; an expensive result is given as a function, called only for `--json`."""
    code: int = 0
    """Exit code of the command; 0 means success."""


MAX_LISTED = 10
"""Max number of skipped records or clips that are printed one by one."""


def left_out_lines(found: Iterable[str]) -> list[str]:
    """Returns output lines for skipped records or clips: one for each of the first 10, then the count of the rest.

    Args:
        found: One string per skipped item: its name and the reason.
    """
    lines = [f"skipped {text}" for text in found]
    return lines[:MAX_LISTED] + ([f"skipped {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else [])


class Action(Configurable, ABC):
    """Base class of commands.

    The class docstring is the command's description; the field docstrings of its config are the help of its flags.
    `run` and `plan` raise ValueError, UserError or OSError for problems that the user can fix.
    """

    places: ClassVar[tuple[str, ...]] = ()
    """Config fields that the positional arguments set, in this order."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """Short flags of fields: ``-o`` → ``out``."""
    writes_to_stores: ClassVar[bool] = False
    """Whether the field of the flag ``-o`` may be the address of an object store."""

    class Config(Configurable.Config):
        pass

    def __init__(self, config: Config) -> None:
        """Removes file:// from the path of the flag ``-o``; raises UserError for an address that is not supported."""
        self.config: Any = config
        field = self.aliases.get("-o", "")
        address = full_address(out) if isinstance(out := getattr(config, field, None), str) else ""
        if address.startswith("file://"):
            setattr(config, field, address.removeprefix("file://"))
        elif is_remote(address) and (not self.writes_to_stores or address.startswith(READ_ONLY)):
            stores = ", or an address such as s3://bucket/folder or gs://bucket/folder" if self.writes_to_stores else ""
            raise UserError(f"-o {out}: expected a path on this machine{stores}")

    @abstractmethod
    def run(self) -> Result:
        """Runs the command and returns its result."""

    def plan(self) -> Iterable[str]:
        """Yields the output lines of a dry run, which describe what `run` would do. Changes no files.

        Raises the errors of `run` that can be found without changes; UserError if the command has no dry run (the
        default).
        """
        raise UserError(f"{type(self).__name__} has no dry run: it changes no files")


@contextmanager
def user_errors() -> Iterator[None]:
    """Context manager: converts ValueError, DataError and MemoryError to UserError; other exceptions pass through."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, DataError) as error:
        raise UserError(str(error)) from error
    except MemoryError as error:
        raise UserError(
            f"the command needs more memory than the machine has{f': {error}' if str(error) else ''}"
        ) from error


def make_progress_reporter(what: str) -> Callable[[int, int], None]:
    """Returns a function `report(done, total)` that shows on stderr how many of `total` items are done.

    On a terminal it is a progress bar with the remaining time; otherwise it prints one line for each 10 %.

    Args:
        what: Label of the progress bar or of the lines.
    """
    if not sys.stderr.isatty():
        tenth = -1

        def report(done: int, total: int) -> None:
            nonlocal tenth
            if 10 * done // total > tenth:
                tenth = 10 * done // total
                print(f"{what}: {100 * done // total} %", file=sys.stderr, flush=True)

        return report
    from rich.console import Console
    from rich.progress import Progress, TimeRemainingColumn

    bar = Progress(*Progress.get_default_columns()[:-1], TimeRemainingColumn(), console=Console(stderr=True))
    task = bar.add_task(what, total=None)

    def show(done: int, total: int) -> None:
        if bar.finished:
            return
        bar.start()
        bar.update(task, completed=done, total=total)
        if done == total:
            bar.stop()

    return show
