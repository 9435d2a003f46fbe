"""What `worldsmith launch` starts, once for each process: `worldsmith`, with a stop that torchrun takes for an end."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from worldsmith.cli.main import main
from worldsmith.cli.said import OUTCOME
from worldsmith.training.stop_signals import PREEMPTED


def launched() -> int:
    """The exit code for torchrun, which ends all other processes when it is not 0.

    Done or stopped is what all of them agree on, so that they may write the same file; the last one counts.
    """
    code = main()
    if code not in (0, PREEMPTED):
        return code
    with suppress(FileNotFoundError):  # the launcher has been killed, and nobody asks
        Path(os.environ[OUTCOME]).write_text(str(code))
    return 0


if __name__ == "__main__":
    sys.exit(launched())
