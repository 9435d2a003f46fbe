"""A mistake that all processes of a launch make is said by one of them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

OUTCOME = "WORLDSMITH_OUTCOME"
"""Environment variable with the file in which the launcher looks for the exit code of processes that ended well."""


def is_said(message: str) -> bool:
    """Whether another process of this launch, on this machine, says the same; who asks first is to say it."""
    outcome = os.environ.get(OUTCOME)
    if outcome is None:
        return False
    mark = Path(outcome).with_name(hashlib.sha256(message.encode()).hexdigest())
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return True
    except OSError:  # the launcher has been killed; better twice than never
        return False
    return False
