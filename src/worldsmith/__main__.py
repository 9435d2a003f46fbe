"""The `worldsmith` command, also as `python -m worldsmith`."""

import gc
import os
import signal
import sys
import time

COLLECTED = (10_000, 10, 10)
"""Arguments of `gc.set_threshold`: high, because collections while modules are imported take 1/6 of the start-up and
free nothing."""


def program() -> None:
    """Runs the command in `sys.argv` and exits with its code; Ctrl-C during imports exits without a traceback."""
    if sys.version_info < (3, 11):  # noqa: UP036  # run from the source tree, where no pip has refused it
        found = ".".join(str(number) for number in sys.version_info[:3])
        message = f"Python is too old: expected 3.11 or newer, found {found} ({sys.executable})."
        fix = "Run `make install` in the clone, or `python3.11 -m venv DIR` and `DIR/bin/pip install WHEEL`."
        print(f"worldsmith: error: {message} {fix}", file=sys.stderr)
        sys.exit(2)
    try:
        time.time()
    except OverflowError as error:  # each library that reads the time would end with a traceback
        message = "the system clock is wrong: expected a date from 1678 to 2261, found one that Python cannot read"
        fix = "Set the clock of this machine; `date` shows it."
        print(f"worldsmith: error: {message} ({error}). {fix}", file=sys.stderr)
        sys.exit(2)
    gc.set_threshold(*COLLECTED)
    # Threads of torch that wait for each other sleep: spinning costs a busy machine several times the work itself.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    from worldsmith.cli.main import main

    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command has ended, as its exit code shows
    sys.exit(code)


if __name__ == "__main__":
    program()
