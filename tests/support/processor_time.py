"""Processor time of a command, in units that do not depend on the machine or on its load."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

REFERENCE = "import argparse, asyncio, dataclasses, email.message, inspect, json, logging.config, unittest.mock"


def run_timed(arguments: list[str], **settings: Any) -> tuple[subprocess.CompletedProcess[str], float]:
    """Runs a command and returns its result and its processor time, divided by that of `REFERENCE`.

    The reference program is run directly before and after, and the faster run counts.

    Args:
        arguments: Command line.
        settings: Further arguments of `subprocess.run`.
    """
    before = _reference_seconds()
    done, seconds = _run(arguments, **settings)
    return done, seconds / min(before, _reference_seconds())


def _reference_seconds() -> float:
    done, seconds = _run([sys.executable, "-c", REFERENCE])
    assert done.returncode == 0, done.stderr
    return seconds


def _run(arguments: list[str], **settings: Any) -> tuple[subprocess.CompletedProcess[str], float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(arguments, capture_output=True, text=True, **settings)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
