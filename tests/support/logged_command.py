"""`worldsmith` in a process that a test has forked, with its output in a file."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def call(words: list[str], log: Path, environment: dict[str, str], nohup: bool) -> None:
    """The command, as a shell would start it: no signal is handled. Modules beside this one can be imported."""
    from worldsmith.cli.main import main

    places = [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
    os.environ.update(environment, PYTHONPATH=os.pathsep.join(filter(None, places)))
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
    sys.exit(main(words))
