"""Entry point of each process of `worldsmith launch`: runs `worldsmith` so that torchrun accepts a requested stop."""

from __future__ import annotations

import gc
import sys

from worldsmith.__main__ import COLLECTED
from worldsmith.cli.main import main
from worldsmith.distributed.launcher_messages import report_exit_code
from worldsmith.distributed.process_signals import follow_launcher
from worldsmith.distributed.stop_signals import PREEMPTED
from worldsmith.monitor.process_log import copy_output


def launched() -> int:
    """Runs the `worldsmith` command in `sys.argv` and returns the exit code for torchrun.

    The exit code is 0 also after a requested stop, since torchrun ends all processes if one exits with another code.
    The real code is reported to the launcher.
    """
    gc.set_threshold(*COLLECTED)
    follow_launcher()
    copy_output()
    code = main()
    if code not in (0, PREEMPTED):
        return code
    report_exit_code(code)
    return 0


if __name__ == "__main__":
    sys.exit(launched())
