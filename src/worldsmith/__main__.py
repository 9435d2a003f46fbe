"""The `worldsmith` command, also as `python -m worldsmith`."""

import os
import signal
import sys


def program() -> None:
    """Runs the command; Ctrl-C while it is being imported ends it without a traceback."""
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    from worldsmith.cli.main import main

    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command has ended, as its exit code says
    sys.exit(code)


if __name__ == "__main__":
    program()
