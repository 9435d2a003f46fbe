"""Entry point of each process of `worldsmith launch`: `worldsmith` with a stop that torchrun treats as success."""

from __future__ import annotations

import gc
import sys

from worldsmith.__main__ import COLLECTED
from worldsmith.cli.main import main
from worldsmith.distributed.launch_desk import tell_end
from worldsmith.distributed.process_signals import follow_launcher
from worldsmith.distributed.stop_signals import PREEMPTED
from worldsmith.monitor.process_log import copy_output


def launched() -> int:
    """Returns the exit code for torchrun, which ends all other processes when it is not 0."""
    gc.set_threshold(*COLLECTED)
    follow_launcher()
    copy_output()
    code = main()
    if code not in (0, PREEMPTED):
        return code
    tell_end(code)
    return 0


if __name__ == "__main__":
    sys.exit(launched())
