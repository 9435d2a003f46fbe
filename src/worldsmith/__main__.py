"""The `worldsmith` command, also as `python -m worldsmith`."""

import gc
import os
import signal
import sys

COLLECTED = (10_000, 10, 10)
"""Of `gc.set_threshold`: what is imported stays, and looking for garbage in it takes a sixth of the start of a run."""


def program() -> None:
    """Runs the command; Ctrl-C while it is being imported ends it without a traceback."""
    gc.set_threshold(*COLLECTED)
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    from worldsmith.cli.main import main

    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command has ended, as its exit code says
    sys.exit(code)


if __name__ == "__main__":
    program()
