"""Text on its way to the terminal: what it holds from outside does not control the terminal, or flood it."""

from __future__ import annotations

import logging
import sys

from worldsmith.config.write.values import escape_controls, limit_message


def print_text(text: str) -> None:
    """Prints results on standard output."""
    print(escape_controls(text), flush=True)


def print_message(text: str) -> None:
    """Prints an error or a note on standard error."""
    print(escape_controls(limit_message(text)), file=sys.stderr, flush=True)


def print_warning(text: str) -> None:
    print_message(f"warning: {text}")


class TerminalFormatter(logging.Formatter):
    """Log records as a terminal shows them, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(limit_message(super().format(record)))


def format_last_resort() -> None:
    """Records that no handler takes are formatted like all others."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(TerminalFormatter("%(message)s"))


def terminal_handler() -> logging.Handler:
    """A handler that writes messages to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TerminalFormatter("%(message)s"))
    return handler
