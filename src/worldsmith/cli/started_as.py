"""The words with which this process was started, for a shell."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from worldsmith.monitor.redaction import redact_arguments

COMMAND_VARIABLE = "WORLDSMITH_COMMAND"
"""Environment variable in which a launcher gives its processes the command that started it."""
MODULES = ("__main__.py", "main.py")


def started_as() -> list[str]:
    """The command of this process and its arguments, without secrets."""
    program, *arguments = sys.argv
    if Path(program).name in MODULES:
        first = [sys.executable, "-m", "worldsmith"]
    else:
        first = [Path(program).name if shutil.which(Path(program).name) == program else program]
    return [*first, *redact_arguments(arguments)]
